"""The site's pages are complete, and its own parts ask nobody for anything."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.docs.blocks import ROOT

import ffalm

DOCS = ROOT / "docs"


def test_every_public_name_is_on_one_page() -> None:
    pages = sorted((DOCS / "reference" / "python").glob("*.md"))
    named = re.findall(
        r"^::: ffalm\.(\w+)$", "\n".join(page.read_text(encoding="utf-8") for page in pages), re.MULTILINE
    )
    assert Counter(named) == Counter(ffalm.__all__)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert [page for page in sorted(pages) if f" {page}\n" not in navigation] == []


def test_the_theme_fetches_no_font_and_no_script() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in settings and "extra_javascript" not in settings and "https://" not in settings


def test_the_picture_of_the_report_is_small() -> None:
    picture = DOCS / "assets" / "report.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < 300_000


def test_code_in_tables_is_shown_as_it_is_typed() -> None:
    site = pytest.importorskip("scripts.docs_site", reason="needs mkdocs: pip install '.[docs]'")
    assert "| `dpd <= 0.05` |" in site.settings_page()
    assert 'such as "dpd &lt;= 0.05"' in site.settings_page()  # outside of code it would begin an HTML tag


def test_pages_made_from_the_code_say_what_its_commands_say() -> None:
    site = pytest.importorskip("scripts.docs_site", reason="needs mkdocs: pip install '.[docs]'")
    assert "differential privacy: yes, with sites if gaps are measured on training rows" in site.algorithms_page()
    assert "- Engines: loop, stacked, flower\n" in site.algorithms_page()
    assert "| Fewest training rows of a group that is compared;" in site.data_page()
    assert "Numeric columns are standardised" in site.data_page()
    assert "Default: ." not in site.commands_page()
