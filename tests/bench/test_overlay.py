"""The figure of the first page is that of the runs that are kept."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

from bench.overlay import draw, points

ROOT = Path(__file__).parents[2]
FIGURE = ROOT / "docs" / "assets" / "curve.svg"
CURVES = {
    "α = 0: in step": "quickstart_alpha0",
    "α = 4 batches ahead": "quickstart_alpha4",
    "α = 16 batches ahead": "quickstart_alpha16",
}
SCORE = "val/reverse_digits/score"


def test_the_curve_of_the_first_page_is_drawn_from_the_kept_runs() -> None:
    curves = [(label, points(run, SCORE)) for label, run in CURVES.items()]
    assert FIGURE.read_text() == draw(curves, f"{SCORE} over the steps") + "\n"


def test_what_is_said_of_the_kept_runs_is_theirs() -> None:
    first = [next(step for step, score in points(run, SCORE) if score > 0.9) for run in CURVES.values()]
    for page in ("README.md", "bench/RESULTS.md"):
        assert "above 0.9 first at step {}, {} and {}.".format(*first) in " ".join((ROOT / page).read_text().split())
    assert min(points(run, SCORE)[-1][1] for run in CURVES.values()) > 0.95


def test_a_line_goes_through_its_points() -> None:
    drawn = xml.fromstring(draw([("one", [(0, 0.0), (40, 0.5), (80, 1.0)])], "a title"))
    (line,) = (path.get("d") for path in drawn.findall("{*}path") if path.get("class") == "line0")
    assert line is not None
    assert line.startswith("M52.0 256.0L312.0 136.0L572.0 16.0")  # left, middle and right of 520 × 240 from (52, 16)
