"""What the pages outside of the site link to is there; links between pages of the site are held by its build."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT

LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")
ON_THE_SITE_ALONE = {"docs/index.md", "docs/keys.md", "docs/interface.md", "docs/contract.md"}
"""Pages of which a reader of the repository would see a directive, and not what it makes."""


def links(page: str) -> set[str]:
    """The files of this repository that a page links to."""
    return set(LINK.findall((ROOT / page).read_text()))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "WORKSPACE.md", "CHANGELOG.md"])
def test_a_link_leads_somewhere(page: str) -> None:
    assert [link for link in links(page) if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_the_readme_leads_to_every_page_and_notebook() -> None:
    pages = {page for page in PAGES if page.startswith("docs/")} - ON_THE_SITE_ALONE
    notebooks = {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert (pages | notebooks) - links("README.md") == set()
