"""`study.json` holds all that a report needs besides the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ffalm
from ffalm.errors import UserError
from ffalm.outcome import LeftOut, StudyRecord
from ffalm.studies.describe import read_record, read_study, write_record

QUICK: dict[str, Any] = {"data_settings": {"rows": 300}, "clients": 2, "model": "linear", "rounds": 2, "device": "cpu"}


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = StudyRecord(
        "title", {"data": "x"}, {"seeds": "0"}, [{"client": "0", "rows": 3}], ["."], ("a", "b"), 0, ("FPFL",),
        ("note",),        (LeftOut("FairFed", "It cannot."),), "best", 1e-5, {"ffalm": "0"}, "ffalm compare",
    )  # fmt: skip
    write_record(record, tmp_path)
    assert read_record(tmp_path) == record


def test_a_study_is_read_from_its_folder_alone_and_so_is_one_run_of_it(tmp_path: Path) -> None:
    study = ffalm.compare("census", ["fedavg", "fpfl"], seeds=2, out=tmp_path, **QUICK)
    assert read_study(tmp_path) == (study.record, study.results)
    stored = json.loads((tmp_path / "study.json").read_text())
    assert stored["runs"][0] == "runs/fedavg-alpha-5-seed-0"
    assert stored["versions"]["ffalm"] == ffalm.__version__
    alone = read_study(tmp_path / "runs" / "fpfl-alpha-5-seed-1")
    assert [(run.label, run.seed) for run in alone[1]] == [("FPFL", 1)]
    (tmp_path / "runs" / "fpfl-alpha-5-seed-1" / "result.json").unlink()
    assert len(read_study(tmp_path)[1]) == 3  # as of a study that was stopped


def test_the_run_of_a_federation_is_found_in_its_folder(tmp_path: Path) -> None:
    ffalm.compare("census", "fedavg", seeds=1, out=tmp_path / "run", **QUICK)
    assert [run.label for run in read_study(tmp_path)[1]] == ["FedAvg"]


def test_a_folder_without_a_study_and_a_damaged_record_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no study\.json in"):
        read_study(tmp_path)
    for text in ("{", "[]", "{}", '{"title": 3, "left_out": [4]}'):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(UserError, match=r"study\.json is damaged"):
            read_study(tmp_path)
