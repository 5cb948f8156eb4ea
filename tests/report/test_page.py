from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.report.makers import run, study

from ffalm.outcome import StudyOutcome
from ffalm.report.drawing import Drawing, Drawings
from ffalm.report.page import render

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
def drawings() -> Drawings:
    specification = '{"vconcat":[]}'
    chart = Drawing("metrics", "<svg></svg>", specification)
    return Drawings(b"", b"", [chart], "window.vegaEmbed = 0;")


def test_the_page_says_what_was_asked_and_what_came_out(compared: StudyOutcome) -> None:
    words = Page(render(compared, None, [])).words
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
    words = Page(render(replace(compared, notes=[f"{reason} (seed 1)"]), None, [])).words
    assert words.index("1 of 4 runs diverged") < words.index("In short") < words.index(f"{reason} (seed 1)")
    html = render(study(run("FFALM", 1, diverged=reason), notes=[f"{reason} (seed 1)"]), None, [])
    assert html.count(reason) == 1


def test_nothing_in_the_page_points_to_the_network(compared: StudyOutcome, drawings: Drawings) -> None:
    page = Page(render(compared, drawings, []))
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, name, target)
    style = re.findall(r"<style>(.*?)</style>", render(compared, drawings, []), re.S)[0]
    assert "url(" not in style
    assert "@import" not in style


def test_the_browser_may_fetch_nothing_and_run_these_scripts_alone(compared: StudyOutcome, drawings: Drawings) -> None:
    policy, without = (
        next(meta["content"] or "" for meta in Page(render(compared, drawn, [])).all("meta") if "http-equiv" in meta)
        for drawn in (drawings, None)
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert policy.count("sha256-") == 2
    assert "script-src 'none'" in without


def test_text_of_the_user_is_shown_and_never_run() -> None:
    attack = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    outcomes = [run(attack, 0, 0.8, 0.1, 0.1), run(f"B{attack}", 0, diverged=attack)]
    hostile = study(
        *outcomes,
        title=attack,
        task={"data": attack, "favourable": attack},
        choices={attack: attack, "command": attack},
        clients=[{attack: attack, "rows": 3}],
        notes=[attack],
    )
    page = Page(render(hostile, None, [attack]))
    assert page.all("script") == []
    assert page.all("img") == []
    assert "<script>alert(1)</script>" in page.words


def test_without_drawings_there_is_no_script_and_the_note_says_why(compared: StudyOutcome) -> None:
    page = Page(render(compared, None, ["The curves were left out."]))
    assert page.all("script") == []
    assert page.all("figure") == []
    assert "The curves were left out." in page.words


def test_charts_have_a_text_for_those_who_cannot_see_them(compared: StudyOutcome, drawings: Drawings) -> None:
    images = [
        attributes for attributes in Page(render(compared, drawings, [])).all("div") if attributes.get("role") == "img"
    ]
    assert len(images) == 1
    assert "FedAvg, FFALM" in (images[0]["aria-label"] or "")


def test_every_table_header_says_what_it_heads(compared: StudyOutcome) -> None:
    page = Page(render(compared, None, []))
    assert page.all("th")
    assert all("scope" in attributes for attributes in page.all("th"))


def test_the_best_mean_is_bold_and_the_others_are_not(compared: StudyOutcome) -> None:
    html = render(compared, None, [])
    assert "<strong>82.00</strong>" in html
    assert "<strong>79.00</strong>" not in html


def test_a_single_run_has_no_comparison_and_no_warning() -> None:
    words = Page(render(study(run("FFALM", 0, 0.8, 0.1, 0.1, alpha=None)), None, [])).words
    assert "Change against" not in words
    assert "diverged" not in words
    assert "\N{GREEK SMALL LETTER ALPHA}" not in words
    assert "1 algorithm" in words
    assert "80.00" in words


def test_clients_have_bars_for_their_size_and_shares(compared: StudyOutcome) -> None:
    html = render(compared, None, [])
    assert re.findall(r"--part:([\d.]+)%", html) == ["50.0", "25.0", "100.0", "50.0"]


def test_nested_shares_of_a_client_become_columns() -> None:
    clients = [{"client": "north", "rows": 4, "groups": {"Female": 0.5, "Male": 0.5}}, {"client": "south"}]
    words = Page(render(study(run("A", 0, 0.8), clients=clients), None, [])).words
    assert "groups: Female" in words
    assert "50 %" in words
    assert "2 clients" in words


def test_the_command_is_shown_under_run_it_again_and_not_among_the_settings() -> None:
    html = render(study(run("A", 0, 0.8), choices={"rounds": "70", "command": "ffalm run --seed 1"}), None, [])
    assert html.count("ffalm run --seed 1") == 1
    assert html.index("Run it again") < html.index("ffalm run --seed 1")
