"""Each run is done once, wherever it is asked for, and never mistaken for one with other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.conftest import outcome

from ffalm.config import StudyConfig
from ffalm.errors import UserError
from ffalm.outcome import StudyRecord
from ffalm.reproduce.request import Request
from ffalm.reproduce.studies import computed_study
from ffalm.studies.results import Study
from ffalm.studies.study import compute_study


class Counting:
    """A quiet runner that counts the rounds it computes."""

    def __init__(self) -> None:
        self.rounds = 0

    def __call__(self, config: StudyConfig, folder: Path) -> Study:
        return compute_study(config, folder, existing="share", on_round=self._count)

    def _count(self, *_: object) -> None:
        self.rounds += 1


def test_more_seeds_and_skews_do_only_what_is_new(tiny: Request, tmp_path: Path) -> None:
    run = Counting()
    one = replace(tiny, seeds=(0,))
    computed_study(one, tmp_path, run, "faces", [5.0], one.entries(["ffalm"]))
    assert run.rounds == 2
    found = computed_study(tiny, tmp_path, run, "faces", [5.0], tiny.entries(["fedavg", "ffalm"]))
    assert run.rounds == 2 + 3 * 2
    assert [(one.label, one.seed) for one in found.outcomes] == [
        ("FedAvg", 0),
        ("FedAvg", 1),
        ("FFALM (paper)", 0),
        ("FFALM (paper)", 1),
    ]
    computed_study(tiny, tmp_path, run, "faces", [5.0], tiny.entries(["fedavg", "ffalm"]))
    assert run.rounds == 8


def test_a_run_made_with_other_settings_is_refused(tiny: Request, tmp_path: Path) -> None:
    run = Counting()
    one = replace(tiny, seeds=(0,))
    computed_study(one, tmp_path, run, "faces", [5.0], one.entries(["fedavg"]))
    other = replace(one, settings={**one.settings, "training": {"rounds": 3}})
    with pytest.raises(UserError, match="holds a run with other settings"):
        computed_study(other, tmp_path, run, "faces", [5.0], other.entries(["fedavg"]))


def test_the_machine_may_change_between_runs(tiny: Request, tmp_path: Path) -> None:
    run = Counting()
    one = replace(tiny, seeds=(0,))
    computed_study(one, tmp_path, run, "faces", [5.0], one.entries(["fedavg"]))
    other = replace(one, settings={**one.settings, "engine": "loop", "checkpoint_every": 2})
    computed_study(other, tmp_path, run, "faces", [5.0], other.entries(["fedavg"]))
    assert run.rounds == 2


def test_notes_and_settings_use_the_names_of_the_table(tiny: Request, tmp_path: Path) -> None:
    def noted(config: StudyConfig, folder: Path) -> Study:
        record = StudyRecord("", {}, {"ffalm-paper": "x"}, [], [], data_notes=("ffalm-paper: a file",), keep="best")
        history = [{"round": number, "accuracy": 0.5} for number in (1, 2)]
        return Study(record, [outcome("ffalm-paper", history=history)], folder)

    found = computed_study(tiny, tmp_path, noted, "faces", [5.0], tiny.entries(["ffalm"]))
    assert found.choices == {"FFALM (paper)": "x"}
    assert found.notes[0] == "ffalm-paper: a file"  # what is not about the algorithm stays as it is
    assert found.notes[1].startswith("FFALM (paper): the model scored is that of round 2 of 2")
