"""What people read at the end, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.federate.makers import config, with_model, world

from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.coordinator.federation_report import _ranges, summary
from ffalm.studies.results import Study


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run in which one site missed two rounds and another's answer once did not count."""
    huge = with_model(lambda model: {name: value + 1000 for name, value in model.items()})
    sites = world(tmp_path, mishaps={("north", 1): "late", ("north", 2): "dead", ("west", 3): huge})
    coordinate(config(rules={"min_group": 4}), tmp_path / "run", sites, pause=0.001)
    return tmp_path / "run"


def test_the_page_says_the_metrics_each_site_and_what_to_know(run: Path) -> None:
    page = (run / "report.md").read_text()
    assert "# FFALM (safe) over 3 sites" in page
    assert "| Accuracy |" in page and " to " in page
    north = next(line for line in page.splitlines() if line.startswith("| north |"))
    assert north.split(" | ")[1] == "63" and "| 1-2 |" in north
    west = next(line for line in page.splitlines() if line.startswith("| west |"))
    assert "| 3 |" in west
    assert "- The site 'north' missed 2 rounds of 5: 1-2." in page
    assert "- The answer of the site 'west' in round 3 did not count: its update has the norm" in page
    assert "withholds" in page and "* of the rows in the cells that the site sends" in page


def test_the_terminal_shows_the_same_in_plain_text(run: Path) -> None:
    text = summary(run)
    assert "All sites together" in text and "Worst group's accuracy" in text
    assert "The site 'north' missed 2 rounds" in text
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 100


def test_the_run_folder_is_a_study_of_one_run(run: Path) -> None:
    record = json.loads((run / "study.json").read_text())
    assert record["title"] == "FFALM (safe) over 3 sites" and record["runs"] == ["."]
    assert record["task"] == {"data": "loans", "label": "loan", "favourable": "yes", "groups": "sex: female, male"}
    assert [client["client"] for client in record["clients"]] == ["north", "south", "west"]
    north = record["clients"][0]
    assert north["rows"] == 63 and north["group female"] + north["group male"] == pytest.approx(1)
    assert any("missed 2 rounds" in note for note in record["data_notes"])
    assert record["choices"]["training: rounds"] == "5"
    assert "delta" not in record  # the page would say that the noise comes from a seed


def test_a_record_that_was_changed_is_no_study(run: Path) -> None:
    file = run / "study.json"
    file.write_text(file.read_text().replace("FFALM (safe) over 3 sites", "FFALM (safe) over 4 sites"))
    with pytest.raises(UserError, match=r"study\.json is damaged"):
        Study.load(run)


def test_rounds_are_written_as_ranges() -> None:
    assert _ranges([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert _ranges([]) == ""
