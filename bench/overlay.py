"""Draws the held-out scores of kept runs into one figure, for pages that may be light or dark.

    python -m bench.overlay val/reverse_digits/score "α = 0:quickstart_alpha0" … > docs/assets/curve.svg

What: reads ``bench/runs/NAME/metrics.csv`` of each ``LABEL:NAME`` and prints an SVG.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

RUNS = Path(__file__).parent / "runs"
COLOURS = (("#0b5cad", "#7cc0ff"), ("#b35900", "#ffb060"), ("#5f6670", "#b4bcc6"))
"""Of the lines, on light pages and on dark ones; colour-blind readers tell them apart, and by their dashes."""
DASHES = ("none", "7 4", "2 4")
LEFT, TOP, WIDTH, HEIGHT = 52, 16, 520, 240
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 312" role="img" aria-labelledby="title">
  <title id="title">{title}</title>
  <style>
    text {{ font: 15px system-ui, sans-serif; fill: #333b45 }}
    .grid {{ stroke: #d5dbe2 }}
    path {{ fill: none; stroke-width: 2.5; stroke-linejoin: round }}
    {light}
    @media (prefers-color-scheme: dark) {{
      text {{ fill: #c5ced8 }}
      .grid {{ stroke: #3a444f }}
      {dark}
    }}
  </style>"""

Points = list[tuple[int, float]]


def points(run: str, column: str) -> Points:
    """Steps of a kept run in which the column has a value, and that value."""
    with open(RUNS / run / "metrics.csv", newline="") as file:
        return [(int(row["step"]), float(row[column])) for row in csv.DictReader(file) if row[column]]


def draw(curves: Sequence[tuple[str, Points]], title: str) -> str:
    """Returns the SVG of labelled curves, at most three, whose values lie between 0 and 1."""
    most = max(step for _, line in curves for step, _ in line)

    def at(step: float, value: float) -> str:
        return f"{LEFT + WIDTH * step / most:.1f} {TOP + HEIGHT * (1 - value):.1f}"

    light, dark = (
        " ".join(f".line{i} {{ stroke: {colours[shade]} }}" for i, colours in enumerate(COLOURS)) for shade in (0, 1)
    )
    rows = [HEAD.format(title=title, light=light, dark=dark)]
    for value in (0, 0.25, 0.5, 0.75, 1):
        height = TOP + HEIGHT * (1 - value)
        rows.append(f'  <path class="grid" style="stroke-width:1" d="M{at(0, value)}H{LEFT + WIDTH}"/>')
        rows.append(f'  <text x="{LEFT - 8}" y="{height + 5:.0f}" text-anchor="end">{value:g}</text>')
    for step in range(0, most + 1, 40):
        x = LEFT + WIDTH * step / most
        rows.append(f'  <text x="{x:.0f}" y="{TOP + HEIGHT + 22}" text-anchor="middle">{step}</text>')
    rows.append(f'  <text x="{LEFT + WIDTH / 2:.0f}" y="{TOP + HEIGHT + 44}" text-anchor="middle">step</text>')
    for index, ((label, line), dashes) in enumerate(zip_longest(curves, DASHES[: len(curves)])):
        way = "L".join(at(*point) for point in line)
        y = TOP + HEIGHT - 50 + 20 * index
        key = f"M{LEFT + WIDTH - 218} {y}h40"
        rows.append(f'  <path class="line{index}" stroke-dasharray="{dashes}" d="M{way}{key}"/>')
        rows.append(f'  <text x="{LEFT + WIDTH - 170}" y="{y + 5}">{label}</text>')
    return "\n".join([*rows, "</svg>"])


def main() -> int:
    column, *labelled = sys.argv[1:]
    curves = [(label, points(run, column)) for label, _, run in (text.rpartition(":") for text in labelled)]
    print(draw(curves, f"{column} over the steps"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
