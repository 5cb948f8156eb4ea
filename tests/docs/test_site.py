"""The site's pages are complete, and its own parts ask nobody for anything."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT

import ffalm

DOCS = ROOT / "docs"
#: The pages of the site that are files.
SITE = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "benchmarks/RESULTS.md")),
]


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


@pytest.mark.parametrize("page", SITE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lists_and_tables_are_what_the_site_takes_them_for(page: Path) -> None:
    """Python-Markdown needs a blank line before a list, two around a table, and four spaces to stay in a list's item.

    An item after such a paragraph needs a blank line too.
    """
    text = re.sub(r"^( *)```.*?^\1```$", "code", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    paragraph = r"^(?![-*#|<]|\d+\. |\s).+\n"
    assert re.findall(rf"(?:\n\n|\A|^#.*\n|^<!.*\n)(?:{paragraph})+(?=[-*] |\d+\. )", text, re.MULTILINE) == []
    assert re.findall(r"^(?!#| *\|).+\n *\|.*\|\n(?= *\|[-:])", text, re.MULTILINE) == []
    assert re.findall(r"^ *\|.*\|\n(?! *\||\n|\Z)", text, re.MULTILINE) == []
    assert re.findall(r"\n\n {1,3}[^ \n].*", text) == []
    assert re.findall(r"\n\n {4}.*\n(?: {4}.*\n)*[^ \n].*", text) == []


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


def test_signatures_show_the_defaults_of_settings() -> None:
    griffe = pytest.importorskip("griffe", reason="needs mkdocstrings: pip install '.[docs]'")
    from scripts.plain_defaults import PlainDefaults

    code = "penalty: float = setting(2.0, 'Coefficient.', least=0)\nother = field(default=1)"
    page = griffe.visit("page", Path("page.py"), code, extensions=griffe.Extensions(PlainDefaults()))
    assert [str(page[name].value) for name in ("penalty", "other")] == ["2.0", "field(default=1)"]
