"""The site builds without a warning, and its pages ask no network for anything."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

pytestmark = pytest.mark.slow
FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'> ]+)""")
IN_STYLES = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"') ]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built by the command of ``make docs`` into another place."""
    built = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^docs:.*\n\t\$\(BIN\)/sphinx-build (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    options = shlex.split(recipe[1].replace("build/", f"{built}/"))
    command = [sys.executable, "-m", "sphinx", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return built / "site"


def test_every_page_is_there(site: Path) -> None:
    assert {f"{Path(page).stem}.html" for page in PAGES if page.startswith("docs/")} <= {p.name for p in site.iterdir()}


def test_the_first_page_is_that_of_the_readme(site: Path) -> None:
    shown, readme = (site / "index.html").read_text(), PAGES["README.md"]
    parts = [*re.findall(r"^## (.+)$", readme, re.MULTILINE), *re.findall(r"^!\[(.+?)\]", readme, re.MULTILINE)]
    assert len(parts) == 5
    assert [part for part in parts if part not in shown] == []


def test_no_page_fetches_anything(site: Path) -> None:
    asked = [(p.name, found) for p in site.rglob("*.html") for found in FETCHED.findall(p.read_text())]
    styled = [(p.name, found) for p in site.rglob("*.css") for found in IN_STYLES.findall(p.read_text())]
    assert asked + styled == []


def test_the_docstrings_of_the_interface_and_every_key_are_there(site: Path) -> None:
    interface, keys = ((site / f"{page}.html").read_text() for page in ("interface", "keys"))
    for name in (
        "rljax.Run.evaluate",
        "rljax.load_config",
        "envs.text_env.TextEnv",
        "rljax.config.registries.Registry",
    ):
        assert f'id="{name}"' in interface, name
    assert "async_generation_ratio" in keys
    assert "learner.optimizer.learning_rate" in keys
