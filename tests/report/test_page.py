from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.report.makers import run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.curves import Chart, charts
from ffalm.report.page import render
from ffalm.report.rendering import to_markdown
from ffalm.report.study_tables import results

Attributes = dict[str, str | None]

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, every attribute and text kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, Attributes]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def all(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        return " ".join("".join(self.text).split())


@pytest.fixture
def drawn(compared: StudyOutcome) -> list[Chart]:
    return charts(compared)


def test_the_page_says_what_was_asked_and_what_came_out(compared: StudyOutcome) -> None:
    words = Page(render(compared)).words
    for part in (
        "Incomes",
        ">50K",
        "Female, Male",
        "82.00 ± 2.83",
        "FFALM has the smallest demographic parity difference (DPD)",
        "Two rows were",
    ):
        assert part in words


def test_a_divergence_stands_at_the_top_and_its_reason_in_the_notes(compared: StudyOutcome) -> None:
    reason = "FFALM diverged in round 3: its loss is no longer finite."
    words = Page(render(replace(compared, notes=[f"{reason} (seed 1)"]))).words
    assert words.index("1 of 4 runs diverged") < words.index("has the smallest") < words.index(f"{reason} (seed 1)")
    html = render(study(run("FFALM", 1, diverged=reason), notes=[f"{reason} (seed 1)"]))
    assert html.count(reason) == 1


def test_nothing_in_the_page_points_to_the_network(compared: StudyOutcome, drawn: list[Chart]) -> None:
    page = Page(render(compared, drawn))
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, name, target)
    style = re.findall(r"<style>(.*?)</style>", render(compared, drawn), re.S)[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_browser_may_fetch_nothing_and_run_these_scripts_alone(compared: StudyOutcome, drawn: list[Chart]) -> None:
    policy, without = (
        next(meta["content"] or "" for meta in Page(render(compared, curves)).all("meta") if "http-equiv" in meta)
        for curves in (drawn, [])
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert (policy.count("sha256-"), without.count("sha256-")) == (2, 1)  # without curves, sorting alone


def test_text_of_the_user_is_shown_and_never_run() -> None:
    attack = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    outcomes = [run(attack, 0, 0.8, 0.1, 0.1), run(f"B{attack}", 0, diverged=attack)]
    hostile = study(
        *outcomes,
        title=attack,
        task={"data": attack, "favourable": attack},
        choices={attack: attack},
        command=attack,
        versions={attack: attack},
        group_names=(attack, "B"),
        clients=[{attack: attack, "rows": 3}],
        notes=[attack],
    )
    page = Page(render(hostile, charts(hostile), [attack]))
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert "<script>alert(1)</script>" in page.words


def test_without_curves_there_is_no_section_of_them(compared: StudyOutcome) -> None:
    page = Page(render(compared, notes=["The curves were left out."]))
    assert "Round by round" not in page.words
    assert "panel" not in [one.get("class") for one in page.all("div")]
    assert "The curves were left out." in page.words


def test_curves_have_a_text_for_those_who_cannot_see_them(compared: StudyOutcome, drawn: list[Chart]) -> None:
    told = [one["aria-label"] or "" for one in Page(render(compared, drawn)).all("svg") if one.get("role") == "img"]
    assert [text for text in told if text.startswith("Accuracy ↑ (%) by round for FedAvg, FFALM")]


def test_every_table_header_says_what_it_heads(compared: StudyOutcome) -> None:
    page = Page(render(compared))
    assert page.all("th")
    assert all("scope" in attributes for attributes in page.all("th"))


def test_the_best_mean_is_bold_and_the_others_are_not(compared: StudyOutcome) -> None:
    html = render(compared)
    assert "<strong>82.00</strong>" in html
    assert "<strong>79.00</strong>" not in html


def test_a_single_run_has_no_comparison_and_no_warning() -> None:
    words = Page(render(study(run("FFALM", 0, 0.8, 0.1, 0.1, alpha=None)))).words
    assert "Change against" not in words
    assert "diverged" not in words
    assert "\N{GREEK SMALL LETTER ALPHA}" not in words
    assert "1 algorithm" in words
    assert "80.00" in words


def test_clients_have_bars_for_their_size_and_shares(compared: StudyOutcome) -> None:
    html = render(compared)
    assert re.findall(r"--part:([\d.]+)%", html) == ["50.0", "25.0", "100.0", "50.0"]


def test_groups_of_clients_are_named_as_they_are() -> None:
    clients = [{"client": "north", "rows": 4, "group a_b": 0.5, "group a b": 0.5}]
    assert "group a_b group a b north" in Page(render(study(run("A", 0, 0.8), clients=clients))).words


def test_nested_shares_of_a_client_become_columns() -> None:
    clients = [{"client": "north", "rows": 4, "groups": {"Female": 0.5, "Male": 0.5}}, {"client": "south"}]
    words = Page(render(study(run("A", 0, 0.8), clients=clients))).words
    assert "groups: Female" in words
    assert "50 %" in words
    assert "2 clients" in words


def test_the_command_is_shown_under_run_it_again_and_not_among_the_settings() -> None:
    html = render(study(run("A", 0, 0.8), command="ffalm run --seed 1"))
    assert html.count("ffalm run --seed 1") == 1
    assert html.rindex("Run it again") < html.index("ffalm run --seed 1")


def test_the_contents_lead_to_every_section_and_nowhere_else(compared: StudyOutcome, drawn: list[Chart]) -> None:
    page = Page(render(compared, drawn))
    places = [f"#{one['id']}" for one in page.all("h2")]
    links = [one["href"] for one in page.all("a") if (one.get("href") or "").startswith("#")]
    assert places == [link for link in links if link in places][: len(places)]
    assert set(links) <= set(places)


def test_tables_can_be_downloaded_from_the_page_alone(compared: StudyOutcome) -> None:
    links = {one["download"]: one["href"] or "" for one in Page(render(compared)).all("a") if "download" in one}
    assert list(links) == ["tables.csv", "tables.tex", "tables.md"]
    text = base64.b64decode(links["tables.md"].partition("base64,")[2]).decode()
    assert text == to_markdown(results(compared))


def test_the_page_says_when_and_with_what_it_was_made() -> None:
    made = study(run("A", 0, 0.8), versions={"ffalm": "9.9"}, finished="2026-01-02 03:04 UTC")
    words = Page(render(made)).words
    assert "The last run was finished 2026-01-02 03:04 UTC. Computing took 1.0 s with ffalm 9.9." in words


def test_degenerate_runs_are_told_of_at_the_top() -> None:
    everybody = [[[40.0, 40.0], [10.0, 10.0]], [[0.0, 0.0], [0.0, 0.0]]]
    words = Page(render(study(run("A", 0, 0.8, 0, 0, confusion=everybody), run("B", 0, 0.9, 0.1, 0.1)))).words
    assert "1 of 2 runs is degenerate" in words


def test_several_skews_are_plots_and_no_paragraphs() -> None:
    runs = [run(label, 0, 0.8, 0.1, 0.1, alpha=alpha) for label in ("FedAvg", "B") for alpha in (0.3, 5.0)]
    page = Page(render(study(*runs)))
    assert "By skew" in page.words
    assert "has the smallest" not in page.words
    assert len([one for one in page.all("svg") if one.get("class") == "plot"]) == 3 + 2 * 2


def test_names_from_right_to_left_are_isolated_but_not_in_what_is_copied() -> None:
    page = Page(render(study(run("קבצה A", 0, 0.8, 0.1, 0.1), notes=["קבצה: 5 rows"], command="ffalm קבצה")))
    assert "\u2068קבצה\u2069: 5 rows" in page.words
    assert "ffalm קבצה" in page.words
    (table,) = re.findall(r"As LaTeX(.*?)As Markdown", page.words)
    assert "קבצה A" in table and "\u2068" not in table
