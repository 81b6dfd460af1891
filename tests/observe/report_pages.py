"""Reads pages of the report as a browser would."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from rljax.observe.report import read_run, write_report

VOID = {"meta", "input", "br", "line"}


class Checker(HTMLParser):
    """Collects ids, addresses and text, and checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.addresses.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def written(run_dir: Path, *parts: Any, **more: Any) -> Path | None:
    """The report of what a directory holds, and of what is known besides."""
    return write_report(run_dir, read_run(run_dir, *parts, **more))


def checked(path: Path | None) -> str:
    """The text of a page that is whole and asks for nothing from elsewhere."""
    assert path is not None
    page = path.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert all(address.startswith("#") for address in checker.addresses)
    for reference in re.findall(r"url\(#([^)]+)\)", page):
        assert reference in checker.ids
    assert "could not be" not in page.lower()
    return page


def figures(page: str) -> dict[str, Any]:
    """What plotly.js draws, by the id of its element; each has such an element, and colours that the page defines."""
    found = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    drawn: dict[str, Any] = json.loads(found[0]) if found else {}
    assert re.findall(r'<div class="figure" id="([^"]+)"', page) == list(drawn)
    for colour in re.findall(r"#[0-9a-f]{6}|var\((.*?)\)", json.dumps(drawn)):
        assert f"{colour}: #" in page
    return drawn


def figure(page: str, title: str) -> dict[str, Any]:
    """The figure of that title."""
    (place,) = re.findall(rf'<h3>{re.escape(title)}</h3>.*?<div class="figure" id="([^"]+)"', page, re.S)[:1]
    drawn: dict[str, Any] = figures(page)[place]
    return drawn


def numbers(values: Any) -> list[float]:
    """An array as plotly.js takes it: a list, or the bytes of its numbers in base64."""
    if isinstance(values, list):
        return values
    return np.frombuffer(base64.b64decode(values["bdata"]), np.dtype(values["dtype"])).tolist()
