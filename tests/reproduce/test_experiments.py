"""Tables and figure as files, from made-up runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reproduce.conftest import FakeRunner

from ffalm.config import StudyConfig
from ffalm.errors import UserError
from ffalm.report.artifact import Artifact
from ffalm.report.summary import ALPHA
from ffalm.reproduce.choices import SCORED
from ffalm.reproduce.experiments import SMOKE, curves, frontiers, sensitivities, table
from ffalm.reproduce.request import Request
from ffalm.studies.results import Study


def test_a_table_comes_in_every_form(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    out = tmp_path / "out"
    product = table("table-3", Request(data_root=str(data_root), seeds=(0, 1)), out, runner)
    assert {path.name for path in (out / "table-3").iterdir()} == {
        "table-3.md",
        "table-3.tex",
        "table-3.csv",
        "utkface",
    }
    text = (out / "table-3" / "table-3.md").read_text()
    assert f"UTKFace, {ALPHA} = 1" in text
    assert f"UTKFace, {ALPHA} = 5" in text
    assert "91.95" in text
    assert "CelebA is not in the data root" in text
    assert "What the paper leaves open" in text
    assert "grouping" in text
    assert "the dual exceeded 1" in text
    assert "91.95" in (out / "table-3" / "table-3.tex").read_text()
    page = (out / "table-3" / "utkface" / "report.html").read_text()
    assert "open: partition" in page
    assert "the dual exceeded 1" in page
    assert "the paper reports Accuracy 91.95" in page
    assert product.values[0]["paper"] == {"accuracy": 91.95, "dpd": 15.59, "eod": 15.94}


def test_a_smoke_run_never_stands_beside_the_papers_numbers(runner: FakeRunner, tmp_path: Path) -> None:
    product = table("table-2", Request(scale="smoke"), tmp_path, runner)
    assert product.notes[0] == SMOKE
    assert "SMOKE" in product.title
    for name in ("table-2.md", "table-2.tex", "table-2.csv", "faces/report.html"):
        text = (tmp_path / "table-2" / name).read_text()
        assert "86.22" not in text
        assert "74.06" not in text
        assert "diff." not in text
    assert all(row["paper"] is None for row in product.values)


def test_settings_changed_by_hand_are_confessed(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    settings = {"training": {"rounds": 3}, "precision": "bf16", "workers": 2}
    product = table("table-2", Request(data_root=str(data_root), seeds=(0,), settings=settings), tmp_path, runner)
    told = [note for note in product.notes if note.startswith("Set by hand")]
    assert told == ["Set by hand, on top of the paper's settings: training.rounds = 3, precision = bf16."]


def test_what_is_set_for_a_data_set_that_is_not_used_is_not_confessed(runner: FakeRunner, tmp_path: Path) -> None:
    request = Request(scale="smoke", seeds=(0,), settings={"celeba": {"split": "identity"}})
    assert not any("by hand" in note for note in table("table-2", request, tmp_path, runner).notes)


def test_an_open_question_answered_by_hand_is_not_told_as_if_it_were_chosen(
    data_root: Path, runner: FakeRunner, tmp_path: Path
) -> None:
    settings = {"utkface": {"sensitive": "race"}, "training": {"local_epochs": 1}}
    request = Request(data_root=str(data_root), seeds=(0,), settings=settings)
    product = table("table-2", request, tmp_path, runner)
    told = {sentence.partition(",")[0]: sentence for sentence in product.choices}
    assert told["grouping"].endswith(": race (set by hand).")
    assert "by hand" not in told["local-epochs"]
    page = (tmp_path / "table-2" / "utkface" / "report.html").read_text()
    assert "race (set by hand)" in page


def test_settings_for_an_algorithm_reach_all_its_forms_or_the_one_that_is_named(
    data_root: Path, runner: FakeRunner, tmp_path: Path
) -> None:
    settings = {"algorithms": {"ffalm": {"penalty": 3.0}, "ffalm-safe": {"penalty": 4.0}}}
    chosen = {"schedule": "paper,safe"}
    table("table-2", Request(data_root=str(data_root), chosen=chosen, settings=settings), tmp_path, runner)
    ((config, _),) = runner.asked
    found = {one.label: vars(one.algorithm).get("penalty") for one in config.entries}
    assert (found["ffalm-paper"], found["ffalm-safe"]) == (3.0, 4.0)


@pytest.mark.parametrize("made", [lambda *how: table("table-2", *how), curves, sensitivities, frontiers])
def test_settings_for_an_algorithm_that_is_not_run_are_refused(
    made: Callable[..., Artifact], runner: FakeRunner, tmp_path: Path
) -> None:
    request = Request(scale="smoke", settings={"algorithms": {"ffalm-papr": {"penalty": 3.0}}})
    with pytest.raises(UserError, match="'ffalm-papr': did you mean 'ffalm-paper'"):
        made(request, tmp_path, runner)
    assert runner.asked == []


@pytest.mark.parametrize("settings", [{"algorithms": 3}, {"algorithms": {"ffalm": 3}}, {"utkface": 3}])
def test_a_section_that_is_given_as_a_setting_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is a section of settings"):
        Request(scale="smoke", settings=settings)


def test_what_is_told_of_the_choices_is_what_plays_a_role(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    """The frontier tries many schedules, and neither it nor the figure looks at test rows."""
    request = Request(data_root=str(data_root), seeds=(0, 1), chosen={"metric": "joint"})
    made = {
        name: product(request, tmp_path, runner).choices
        for name, product in {"frontier": frontiers, "figure": curves, "sensitivity": sensitivities}.items()
    }
    names = {name: {sentence.partition(",")[0] for sentence in told} for name, told in made.items()}
    assert names["frontier"].isdisjoint({"schedule", "dual-data", "dual-bound", "metric"})
    assert {"partition", "grouping", "fpfl"} <= names["frontier"]
    assert {"schedule", "metric"} <= names["figure"]
    assert "metric" not in names["sensitivity"]
    assert {name: SCORED in told for name, told in made.items()} == {
        "frontier": False,
        "figure": False,
        "sensitivity": True,
    }


def test_one_seed_has_no_spread_in_the_caption_either(runner: FakeRunner, tmp_path: Path) -> None:
    for seeds, words in (((0,), "interval over the sampling of the test rows in brackets"), ((0, 1), "± sample")):
        request = Request(scale="smoke", seeds=seeds)
        for product in (table("table-2", request, tmp_path, runner), sensitivities(request, tmp_path, runner)):
            assert words in product.tables[0].caption
            assert ("± sample" in product.tables[0].caption) == (len(seeds) > 1)


def test_the_joint_form_fills_the_table_where_it_is_chosen(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    request = Request(data_root=str(data_root), seeds=(0, 1), chosen={"metric": "joint"})
    product = table("table-2", request, tmp_path, runner)
    assert product.values[0]["ours"]["dpd"] == 30.0
    assert any(sentence.startswith("metric") and "joint" in sentence for sentence in product.choices)


def test_the_figure_is_drawn_from_the_runs_of_table_2(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    request = Request(data_root=str(data_root), seeds=(0, 1))
    table("table-2", request, tmp_path, runner)
    product = curves(request, tmp_path, runner)
    (first, place), (second, again) = runner.asked
    assert (first, place) == (second, again)
    assert product.files["svg"].read_text(encoding="utf-8").startswith("<svg")
    text = product.files["md"].read_text()
    assert "figure-2.svg" in text
    assert "| FedAvg | 70.00 | 70.00 |" in text
    assert product.files["csv"].read_text().startswith("data,algorithm,seeds,metric,last,best")
    assert product.values[0]["rounds"] == [1, 1]


def test_the_figure_says_that_its_gaps_are_of_no_pieces(data_root: Path, runner: FakeRunner, tmp_path: Path) -> None:
    request = Request(data_root=str(data_root), seeds=(0,), chosen={"metric": "piecewise"})
    assert any("all validation rows together" in note for note in curves(request, tmp_path, runner).notes)


def test_the_figure_says_which_round_the_tables_report(runner: FakeRunner, tmp_path: Path) -> None:
    for answer, words in (("last", "tables report the last round"), ("best", "tables report the best round")):
        product = curves(Request(scale="smoke", seeds=(0,), chosen={"round": answer}), tmp_path, runner)
        assert any(words in note for note in product.notes)


def test_the_figure_says_which_runs_diverged(runner: FakeRunner, tmp_path: Path) -> None:
    def lossy(config: StudyConfig, folder: Path) -> Study:
        found = runner(config, folder)
        return replace(found, results=[replace(run, diverged="lost" if run.seed else None) for run in found.results])

    product = curves(Request(scale="smoke", seeds=(0, 1), algorithms=("fedavg",)), tmp_path, lossy)
    assert f"drawn faces, {ALPHA} = 0.3, FedAvg: 1 of 2 runs diverged and are in no mean." in product.notes


def test_sensitivity_is_written_with_its_reading(runner: FakeRunner, tmp_path: Path) -> None:
    product = sensitivities(replace(Request(scale="smoke"), seeds=(0, 1, 2)), tmp_path, runner)
    assert {path.suffix for path in (tmp_path / "sensitivity").iterdir()} == {".md", ".tex", ".csv"}
    text = (tmp_path / "sensitivity" / "sensitivity.md").read_text()
    assert "partition: plain" in text
    assert "clearly changed by" in text
    assert any((row["choice"], row["answer"]) == ("schedule", "safe") for row in product.values)
