"""Figures of the report: which a run has, what they draw, and how lines are told apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.observe.metrics import MetricsLog
from rljax.observe.report.plots import COLOURS, DASHES, LINES, style
from rljax.observe.samples import SampleLog
from rljax.trajectory import Group, TaskId, Trajectory
from tests.observe.report_pages import checked, figure, numbers, written


def drawn(page: str, title: str) -> list[tuple[str, str, list[float]]]:
    """Name, dash and values of the lines of a figure."""
    traces = figure(page, title)["data"]
    return [(trace.get("name", ""), trace["line"].get("dash", ""), numbers(trace["y"])) for trace in traces]


def logged(run_dir: Path, *rows: dict[str, float]) -> str:
    log = MetricsLog(run_dir)
    for step, row in enumerate(rows, start=1):
        log.write(step, row)
    log.close()
    return checked(written(run_dir, {}, None))


def test_length_cut_off_flat_groups_and_learning_rate_have_figures(tmp_path: Path) -> None:
    row = {"response/mean_tokens": 5.0, "response/max_tokens": 9.0, "response/cut_off": 0.25}
    row |= {"reward/mean": 1.0, "reward/flat_groups": 0.5, "learning_rate": 3e-4}
    page = logged(tmp_path, row, row | {"response/mean_tokens": 6.0, "learning_rate": 2e-4})
    assert drawn(page, "Response length") == [("mean", "solid", [5.0, 6.0]), ("longest", "dash", [9.0, 9.0])]
    shares = drawn(page, "Cut-off and flat groups")
    assert shares == [("cut off", "solid", [0.25, 0.25]), ("flat groups", "dash", [0.5, 0.5])]
    assert drawn(page, "Learning rate") == [("", "solid", [3e-4, 2e-4])]


def test_parts_of_the_reward_have_a_line_each_and_one_that_is_all_of_it_none(tmp_path: Path) -> None:
    one = {"reward/mean": 0.5, "reward/std": 0.1, "reward/flat_groups": 0.0, "reward/digits": 0.5}
    (tmp_path / "one").mkdir()
    assert "<h3>Reward parts</h3>" not in logged(tmp_path / "one", one)
    (tmp_path / "two").mkdir()
    page = logged(tmp_path / "two", one | {"reward/format": 1.0})
    assert drawn(page, "Reward parts") == [("digits", "solid", [0.5]), ("format", "dash", [1.0])]
    (tmp_path / "weighed").mkdir()
    assert drawn(logged(tmp_path / "weighed", one | {"reward/mean": 0.25}), "Reward parts")[0][2] == [0.5]


def test_memory_is_that_of_the_device_and_of_the_process_where_there_is_none(tmp_path: Path) -> None:
    host = {"host/rss_mib": 2048.0}
    assert drawn(logged(tmp_path, host), "Memory") == [("", "solid", [2.0])]
    device = {"device/memory_mib": 1024.0, "device/peak_memory_mib": 3072.0, "device/memory_limit_mib": 8192.0}
    (tmp_path / "gpu").mkdir()
    lines = drawn(logged(tmp_path / "gpu", host | device), "Memory")
    assert lines == [("in use", "solid", [1.0]), ("most so far", "dash", [3.0]), ("of the device", "dot", [8.0])]


def test_lines_of_a_figure_differ_in_colour_and_in_dash(tmp_path: Path) -> None:
    styles = [style(position) for position in range(len(DASHES))]
    assert len({colour for colour, _ in styles}) == len({dash for _, dash in styles}) == len(DASHES)
    assert len({style(position) for position in range(LINES * len(DASHES))}) == LINES * len(DASHES)
    page = logged(tmp_path, {f"val/{name}/score": 0.5 for name in "abcdefg"})
    assert len({dash for _, dash, _ in drawn(page, "Held-out score")}) == 6
    legend = re.findall(r'stroke:var\(--(s\d)\)" stroke-dasharray="([^"]*)"/></svg>\s*(\w)</span>', page)
    assert legend == [
        (colour, DASHES[dash], name) for name, (colour, dash) in zip("abcdefg", map(style, range(7)), strict=True)
    ]


def luminance(colour: str) -> float:
    """Relative luminance of a colour, by WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


OKABE_ITO = {"#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"}
"""Okabe and Ito, "Color Universal Design", 2008, without black."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_those_of_okabe_and_ito_and_stand_out(tmp_path: Path, theme: str) -> None:
    page = logged(tmp_path, {"reward/mean": 1.0})
    light, _, dark = page.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(s\d|ink|card): (#[0-9a-f]{6})", light if theme == "light" else dark))
    lines = [found[f"s{number}"] for number in range(1, LINES + 1)]
    assert set(lines[:-1]) < OKABE_ITO
    assert lines[-1] == found["ink"], "in the place of black"
    assert len(set(lines)) == LINES
    for line in lines:
        low, high = sorted((luminance(line), luminance(found["card"])))
        assert (high + 0.05) / (low + 0.05) > 2
    assert set(COLOURS) > {f"s{number}" for number in range(1, LINES + 1)}


def test_the_reference_answer_stands_beside_the_response(tmp_path: Path) -> None:
    ids = np.array([50, 52], np.int32)
    one = Trajectory(ids, np.array([False, True]), np.zeros(2, np.float32), np.array([-1, 0]), np.array([[1, 2]]), 1.0)
    samples = SampleLog(tmp_path, "learner", lambda ids: bytes(ids).decode(), per_step=1)
    samples.write(1, [Group(TaskId("sums", 0, 0), (one,), "<4>")], 0)
    samples.write(2, [Group(TaskId("sums", 0, 1), (one,))], 1)
    page = checked(written(tmp_path, {}, None))
    (text,) = re.findall(r'<script type="application/json" id="samples">(.*?)</script>', page, re.S)
    shown: list[dict[str, Any]] = json.loads(text)
    assert [sample["answer"] for sample in shown] == ["<4>", ""]
    assert "<4>" not in page
    assert page.index('id="response"') < page.index('id="answer"') < page.index('id="versions"')
    (people,) = (tmp_path / "samples").glob("*.txt")
    assert "----- answer 1\n⟨version 0⟩ 4\n----- reference answer\n<4>\n" in people.read_text()
    assert people.read_text().count("reference answer") == 1


def test_figures_can_be_zoomed(tmp_path: Path) -> None:
    page = logged(tmp_path, {"reward/mean": 1.0, "loss": 1.0, "staleness/mean": 0.0})
    assert "'zoom2d', 'pan2d', 'zoomIn2d', 'zoomOut2d', 'resetScale2d'" in page
    for title in ("Reward", "Loss", "Staleness"):
        layout = figure(page, title)["layout"]
        assert not {"fixedrange", "dragmode"} & {*layout, *layout["xaxis"], *layout["yaxis"]}
