"""The page in headless Chromium: on a desk, a phone and paper nothing is cut, nothing is fetched, nothing complains.

`AXE_CORE` names axe-core's `axe.min.js` (`npm install axe-core`); without it the accessibility test skips.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.auditing.test_fairness_audit import audited
from tests.auditing.test_fairness_audit import scored as scored_rows
from tests.report.browser import Browser, chromium
from tests.report.makers import run, study
from tests.report.test_answer_card import REPAIR, candidate, scored

from ffalm.outcome import StudyOutcome
from ffalm.report import write_report
from ffalm.targets.answer import choose
from ffalm.targets.target import Target

pytestmark = pytest.mark.slow

A4 = 688  # pixels between margins of 14 mm
#: What lies beyond the right edge of the page or of a box that scrolls.
CUT = """[...document.querySelectorAll("body *")]
  .filter(one => !one.closest("svg, thead, details:not([open])"))
  .filter(one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1
    || one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible" && one.clientWidth > 0)
  .map(one => `${one.tagName}.${one.className}`)"""


def whole() -> StudyOutcome:
    """A study with everything that a page can show, and names that are long."""
    counts = [[[50.0, 150.0], [10.0, 40.0]], [[5.0, 20.0], [30.0, 90.0]]]
    others = {"equalized_odds": 0.2, "worst_group_accuracy": 0.7}
    labels = (
        "FedAvg",
        "FFALM (released-code)",
        "lagrangian-dp-0.025",
        "an-algorithm-with-a-rather-long-name-of-a-user",
    )
    runs = []
    for place, label in enumerate(labels):
        for seed in range(3):
            rounds = [
                {"round": number, "accuracy": 0.5 + number / 40, "dpd": 0.2, "eod": 0.1, "dual": [0.1 * number, 0.2]}
                for number in range(1, 11)
            ]
            test = (0.80 + place / 50 + seed / 100, 0.25 - place / 20, 0.2 - seed / 50)
            runs.append(run(label, seed, *test, others, alpha=None, confusion=counts, history=rounds))
    free = candidate(labels[0], "accurate", scored(0.90, 0.20, (0.2, 0.5, 0.9)))
    fair = candidate(labels[3], "groups", scored(0.88, 0.04, (0.4, 0.75, 0.8)), REPAIR)
    return study(
        *runs,
        title=f"{' / '.join(labels)} on census",
        answers=[choose(Target.parse("dpd <= 0.05"), [free, fair])],
        group_names=("women", "men"),
        clients=[
            {"client": f"bank {place}", "rows": 1000 * place, "label yes": 0.2, "group women": 0.4, "group men": 0.6}
            for place in range(1, 6)
        ],
        command=f"ffalm compare --data {'loans/' * 20}table.csv",
        versions={"ffalm": "1.0", "torch": "2.6"},
        notes=["A note."],
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(whole(), tmp_path_factory.mktemp("report"))["report.html"].as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.mark.parametrize("width", [1200, 820, 390, 320])
def test_nothing_is_cut_fetched_or_complained_of_on_a_screen(browser: Browser, page: str, width: int) -> None:
    browser.complaints.clear()
    browser.open(page, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(CUT) == []
    assert browser.complaints == []


def test_nothing_is_cut_on_a4_paper(browser: Browser, page: str) -> None:
    browser.open(page, 1200)
    browser.size(A4, "print")
    assert browser.value(CUT) == []
    browser.size(1200)
    printed = base64.b64decode(browser.ask("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert printed.startswith(b"%PDF-")
    assert b"/MediaBox [0 0 594.95" in printed  # 210 mm


@pytest.mark.parametrize("ages", [("",), (" under 30", " under 60", " of 60 or more")])
def test_clients_with_many_groups_fit_a4_paper(browser: Browser, tmp_path: Path, ages: tuple[str, ...]) -> None:
    groups = {f"group {race}, {sex}{age}": 0.1 for race in ("Asian-Pacific", "Black", "Other", "White", "x", "y")
              for sex in ("women", "men") for age in ages}  # fmt: skip
    many = replace(whole(), clients=[{"client": "University hospital", "rows": 100, "label yes": 0.2, **groups}])
    browser.open(write_report(many, tmp_path)["report.html"].as_uri(), 1200)
    browser.size(A4, "print")
    assert browser.value(CUT) == []


def test_on_paper_what_a_click_would_open_is_open_and_titles_stay_with_their_charts(
    browser: Browser, page: str
) -> None:
    browser.open(page, 1200)
    browser.size(A4, "print")
    closed = "[...document.querySelectorAll('details:not(.copies *)')]"
    shown = f"{closed}.map(one => one.lastElementChild.checkVisibility())"
    assert set(browser.value(shown)) == {True}
    # Chromium repeats a table's heads on the next page, but not the buttons in them.
    assert browser.value("getComputedStyle(document.querySelector('thead th button')).display") == "contents"
    assert browser.value("getComputedStyle(document.querySelector('.panel')).breakInside") == "avoid"
    browser.size(1200)
    assert set(browser.value(shown)) == {False}


@pytest.mark.parametrize("width", [1200, 390])
def test_nothing_of_an_audit_is_cut(browser: Browser, tmp_path: Path, width: int) -> None:
    audit = audited(scored_rows(), prediction=None, score="score", group=["race", "sex"])
    browser.complaints.clear()
    browser.open(audit.write_html(tmp_path / "audit.html").as_uri(), width)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value(CUT) == []
    assert browser.complaints == []


def test_several_skews_and_a_page_without_curves_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    from ffalm.report.page import render

    one = whole()
    two = replace(one, outcomes=[replace(run, alpha=alpha) for alpha in (0.3, 5.0) for run in one.outcomes], answers=[])
    file = tmp_path / "report.html"
    file.write_text(render(two), encoding="utf-8")
    browser.complaints.clear()
    browser.open(file.as_uri(), 390)
    assert browser.value("document.querySelectorAll('svg.plot').length") == 3 + 2 * 2
    assert browser.value(CUT) == []
    assert browser.complaints == []


def test_a_click_on_a_heading_sorts_the_table(browser: Browser, page: str) -> None:
    browser.open(page)
    names = "[...document.querySelectorAll('table.results tbody th')].map(one => one.textContent)"
    click = "document.querySelectorAll('table.results thead button')[2].click()"
    values = "[...document.querySelectorAll('table.results tbody tr')].map(row => Number(row.cells[2].dataset.sort))"
    before = browser.value(names)
    browser.value(click)
    rising = browser.value(values)
    assert rising == sorted(rising)
    assert browser.value(names) != before
    browser.value(click)
    assert browser.value(values) == sorted(rising, reverse=True)


def test_rows_without_a_number_are_last_in_either_order(browser: Browser, tmp_path: Path) -> None:
    runs = [run("A", 0, 0.8, 0.1, 0.1), run("B", 0, diverged="stopped"), run("C", 0, 0.7, 0.2, 0.1)]
    browser.open(write_report(study(*runs), tmp_path)["report.html"].as_uri())
    names = "[...document.querySelectorAll('table.results tbody th')].map(one => one.textContent[0])"
    click = "document.querySelectorAll('table.results thead button')[1].click()"
    for order in ("CAB", "ACB"):
        browser.value(click)
        assert "".join(browser.value(names)) == order


@pytest.mark.parametrize("width", [1200, 390])
def test_the_pointer_shows_the_numbers_of_a_round(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width)
    place = """(() => { const svg = document.querySelector('.panel svg'); svg.scrollIntoView({block: 'center'});
      const box = svg.getBoundingClientRect(); return [box.right - 20, box.top + 50] })()"""
    x, y = browser.value(place)
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    told = browser.value("document.querySelector('.tip').innerText")
    assert told.startswith("round 10") and "FedAvg" in told and "75" in told
    assert browser.value("document.documentElement.scrollWidth") <= width
    browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.value("document.querySelector('.tip').hidden")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (390, "light")])
def test_axe_finds_no_barrier(browser: Browser, page: str, width: int, scheme: str) -> None:
    axe = Path(os.environ.get("AXE_CORE", "axe.min.js"))
    if not axe.exists():
        pytest.skip("AXE_CORE does not name axe-core's axe.min.js")
    browser.open(page, width, scheme=scheme)
    browser.value("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.value(axe.read_text(encoding="utf-8") + "; 0")
    found = json.loads(browser.value("axe.run(document).then(found => JSON.stringify(found.violations))"))
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
