"""`ffalm.compare`: studies from Python, kept in a folder, resumed, and never mixed up with another study."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import ffalm
from ffalm.config import parse, read
from ffalm.engines import Engine, Training
from ffalm.errors import UserError
from ffalm.partition import Partition
from ffalm.run_settings import RunSettings
from ffalm.simulation import Model, RunKeywords
from ffalm.studies import grid
from ffalm.studies.study import _begun_by, compute_study, entries_of, new_folder

FAST: dict[str, Any] = {
    "data_settings": {"rows": 300},
    "clients": 2,
    "model": "linear",
    "rounds": 2,
    "engine": "loop",
    "device": "cpu",
    "seeds": 1,
}


def arrays(rows: int = 40, seed: int = 0) -> tuple[Any, Any, Any]:
    draws = np.random.default_rng(seed)
    y, group = np.tile([0, 1], rows // 2), np.tile([0, 0, 1, 1], rows // 4)
    return draws.normal(size=(rows, 3)) + y[:, None], y, group


def federation(seed: int = 0) -> ffalm.Federation:
    return ffalm.Federation.from_arrays([arrays(40, seed), arrays(24, seed + 1)], arrays(20, 8), arrays(40, 9))


def test_a_study_compares_algorithms_over_seeds_and_skews() -> None:
    study = ffalm.compare("census", ["fedavg", "ffalm"], alpha=[1.0, 5], **{**FAST, "seeds": [3, 1]})
    assert [(run.label, run.alpha, run.seed) for run in study.results][:3] == [
        ("FedAvg", 1.0, 3),
        ("FedAvg", 1.0, 1),
        ("FFALM (safe)", 1.0, 3),
    ]
    assert len(study.results) == 8
    assert (study.folder / "study.json").exists()
    folder = study.folder
    del study
    assert not folder.exists()  # nobody asked to keep it


def test_a_study_of_one_federation_gives_the_numbers_of_simulate() -> None:
    same: dict[str, Any] = {"model": "linear", "rounds": 3, "engine": "loop", "device": "cpu"}
    study = ffalm.compare(federation(), [ffalm.FFALM(), "fedavg"], seeds=[2, 5], **same)
    expected = ffalm.simulate(ffalm.FFALM(), federation(), seed=[2, 5], threads=1, **same)
    assert [run.test for run in study.results[:2]] == [result.test for result in expected]
    assert study.results[0].label == "FFALM (paper)"
    assert study.results[0].alpha is None


def test_every_seed_may_have_its_own_federation() -> None:
    same: dict[str, Any] = {"model": "linear", "rounds": 2, "engine": "loop", "device": "cpu"}
    study = ffalm.compare([federation(0), federation(7)], "fedavg", seeds=[4, 3], **same)
    alone = ffalm.simulate("fedavg", federation(7), seed=3, threads=1, **same)
    assert study.results[1].test == alone.test


def test_a_stopped_study_resumes_and_ends_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    class Stop(Exception): ...

    def stop(*_: object) -> None:
        raise Stop

    mine: dict[str, Any] = {"model": lambda: nn.Linear(3, 2), "rounds": 3, "engine": "loop", "device": "cpu"}
    given: dict[str, Any] = {"data": federation(), "algorithms": ["fedavg", "fpfl"], "seeds": 2, **mine}
    with pytest.raises(Stop):
        ffalm.compare(**given, out=tmp_path / "out", on_round=stop)
    with pytest.raises(UserError, match="is not empty"):
        ffalm.compare(**given, out=tmp_path / "out")
    with pytest.raises(UserError, match="other settings"):
        ffalm.compare(**{**given, "data": federation(3)}, out=tmp_path / "out", resume=True)
    resumed = ffalm.compare(**given, out=tmp_path / "out", resume=True)
    whole = ffalm.compare(**given)
    assert [run.test for run in resumed.results] == [run.test for run in whole.results]
    with pytest.raises(UserError, match="given in Python"):
        compute_study(parse(read(tmp_path / "out" / "config.toml")), tmp_path / "out", existing="resume")


@pytest.mark.parametrize("progress", [True, False])
def test_what_on_round_does_with_its_record_leaves_the_history_alone(progress: bool) -> None:
    settings: dict[str, Any] = {"seeds": 1, "rounds": 2, "model": "linear", "engine": "loop", "progress": progress}
    study = ffalm.compare(federation(), "fedavg", on_round=lambda run, record: record.clear(), **settings)
    assert [record["round"] for record in study.results[0].history] == [1, 2]


def test_a_table_may_be_given_by_its_path(tmp_path: Path) -> None:
    x, y, group = arrays(200)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(paid=y, sex=group, branch=np.arange(200) % 3)
    frame.to_csv(tmp_path / "loans.csv", index=False)
    quick: dict[str, Any] = {"model": "linear", "rounds": 1, "seeds": 1, "device": "cpu"}
    study = ffalm.compare(tmp_path / "loans.csv", "fedavg", label="paid", group="sex", owner="branch", **quick)
    assert [client["client"] for client in study.outcome.clients] == ["0", "1", "2"]


def test_the_usual_algorithms_that_cannot_take_the_data_are_left_out_and_named_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise UserError("FairFed cannot take this.")

    monkeypatch.setattr(ffalm.FairFed, "start", refuse)
    study = ffalm.compare(federation(), seeds=1, rounds=1, model="linear", device="cpu")
    assert "FairFed" not in study.outcome.labels()
    assert "Left out: FairFed cannot take this." in study.outcome.notes
    with pytest.raises(UserError, match="FairFed cannot take this"):
        ffalm.compare(federation(), ["fedavg", "fairfed"], seeds=1, rounds=1, model="linear", device="cpu")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data": 3}, "must be the name of a source"),
        ({"data": []}, "must be the name of a source"),
        ({"data": "cencus"}, "did you mean 'census'"),
        ({"algorithms": ["fedagv"]}, "did you mean 'fedavg'"),
        ({"algorithms": [3]}, "registered class"),
        ({"algorithms": []}, "at least one algorithm"),
        ({"ronds": 3}, "did you mean 'rounds'"),
        ({"rounds": 0}, "must be 1 or more"),
        ({"seeds": 0}, "at least one seed"),
        ({"seeds": [0.5]}, "Seeds are whole numbers"),
        ({"partition": "balansed"}, "did you mean 'balanced'"),
        ({"model": nn.Linear(3, 2)}, "Give a function"),
        ({"resume": True}, "needs the folder"),
        ({"data": federation(), "clients": 3}, "already has its data"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        ffalm.compare(**{"algorithms": ["fedavg"], "device": "cpu", **settings})
    assert "\n" not in str(caught.value)


def test_algorithms_enter_under_keys_of_their_own_and_objects_are_known_by_their_preset() -> None:
    entries = entries_of(["ffalm", ffalm.FFALM(), ffalm.FFALM(penalty=9.0)])
    assert [(entry.key, entry.label) for entry in entries] == [
        ("ffalm", "FFALM (safe)"),
        ("ffalm-2", "ffalm-2"),
        ("ffalm-3", "ffalm-3"),
    ]
    assert [entry.label for entry in entries_of({"gentle": ffalm.FFALM(penalty=0.5)})] == ["gentle"]


def test_the_keywords_are_those_of_the_settings_and_so_are_their_defaults() -> None:
    keywords = typing.get_type_hints(RunKeywords)
    hints = {**typing.get_type_hints(RunSettings), **typing.get_type_hints(Training)}
    del hints["training"]
    hints |= {"model": Model, "engine": str | Engine}  # whose types need torch, which the settings do without
    assert keywords == hints
    import inspect

    for function in (ffalm.simulate, ffalm.compare):
        shown = inspect.signature(function).parameters
        for field in dataclasses.fields(Training):
            assert shown[field.name].default == field.default


def test_defaults_are_the_same_in_python_and_in_a_file() -> None:
    import inspect

    shown = inspect.signature(ffalm.load).parameters
    assert (shown["clients"].default, shown["alpha"].default) == (Partition().clients, Partition().alpha)
    assert parse({"algorithms": {"fedavg": {}}}).partition == Partition() == Partition("plain", 10, 5.0)
    by_name = ffalm.simulate("ffalm", federation(), model="linear", rounds=2, device="cpu")
    safe = ffalm.simulate(ffalm.FFALM.preset("safe"), federation(), model="linear", rounds=2, device="cpu")
    assert by_name.state["dual"] == safe.state["dual"]


def test_two_studies_that_start_in_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    assert [new_folder(tmp_path / "results", "compare-census").name for _ in range(3)] == [
        "compare-census",
        "compare-census-2",
        "compare-census-3",
    ]


def test_a_second_study_in_a_folder_in_use_is_refused_and_reports_nobody_elses_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffalm.studies.store._LOCK_SECONDS", 0.2)
    base = {"data": {"source": "census", "rows": 300}, "model": {"name": "linear"}, "partition": {"clients": 2}}
    one, other = (
        parse({**base, "device": "cpu", "training": {"rounds": rounds}, "algorithms": {"fedavg": {}}})
        for rounds in (1, 2)
    )

    def meanwhile(*_: object) -> None:
        with pytest.raises(UserError, match=r"Another process is working|is not empty"):
            compute_study(other, tmp_path)

    compute_study(one, tmp_path, on_round=meanwhile)
    assert json.loads((tmp_path / "result.json").read_text())["seconds"] > 0
    assert parse(read(tmp_path / "config.toml")) == one
    with pytest.raises(UserError, match="holds a run with other settings"):
        compute_study(other, tmp_path, existing="share")


def test_a_model_that_cannot_be_sent_to_workers_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be sent to worker processes"):
        ffalm.compare(
            federation(), "fedavg", seeds=2, workers=2, rounds=1, model=lambda: nn.Linear(3, 2), engine="loop"
        )


def test_a_script_from_standard_input_has_no_workers(tmp_path: Path) -> None:
    """A worker would look for a file named <stdin> and die."""
    script = (
        "import ffalm\n"
        "ffalm.compare('census', 'fedavg', seeds=2, workers=2, rounds=1, clients=2, engine='loop', target=None,\n"
        "              model='linear', data_settings={'rows': 300})\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=script, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "UserError: Worker processes cannot read a script from standard input" in done.stderr


def test_a_model_of_a_notebook_is_not_sent_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def net() -> nn.Module:
        return nn.Linear(3, 2)

    net.__module__, net.__qualname__ = "__main__", "net"
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "net", net, raising=False)
    with pytest.raises(UserError, match="the function net exists only in this session"):
        ffalm.compare(federation(), "fedavg", seeds=2, workers=2, rounds=1, model=net, engine="loop")


def test_an_algorithm_of_a_notebook_is_not_sent_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It pickles by its name, and a worker has no such name: it would die, with a traceback of its own."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(ffalm.FedProx, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "FedProx", ffalm.FedProx, raising=False)
    with pytest.raises(UserError, match="the class FedProx exists only in this session"):
        ffalm.compare(federation(), ffalm.FedProx(), seeds=2, workers=2, rounds=1, engine="loop")


def test_a_study_of_natural_silos_answers_for_each_site_and_for_one_that_did_not_train(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sex = draw.integers(0, 2, 900)
    score = draw.normal(size=900) + sex
    table = pd.DataFrame({"score": score, "sex": sex, "bank": draw.integers(0, 3, 900), "paid": (score > 0.5) * 1})
    table.to_csv(tmp_path / "loans.csv", index=False)
    asked: Any = {"label": "paid", "group": "sex", "favourable": 1, "owner": "bank", "seeds": 1, "rounds": 2}
    asked |= {"data": tmp_path / "loans.csv", "algorithms": "fedavg", "model": "linear", "engine": "loop"}
    study = ffalm.compare(**asked, scope="sites")
    answer = study.answer()
    assert [one.site for one in answer.sites] == ["0", "1", "2"]
    assert answer.scope == "sites" and study.answer(scope="federation").together is None
    (whole,) = study.results
    assert sum(group.rows for one in answer.sites for group in one.after.groups) == np.array(whole.confusion).sum()
    left_out = ffalm.compare(**asked, leave_out="1")
    (alone,) = left_out.results
    assert np.array(alone.confusion).sum() == (table["bank"] == 1).sum()
    assert [one["client"] for one in left_out.record.clients] == ["0", "2"]
    assert not left_out.answer().sites


def test_a_data_frame_gives_the_numbers_of_its_file(tmp_path: Path) -> None:
    score = np.random.default_rng(0).normal(size=90)
    frame = pd.DataFrame({"score": score, "sex": ["m", "f"] * 45, "paid": (score > 0.2) * 1})
    frame.to_csv(tmp_path / "loans.csv", index=False)
    asked: Any = {"algorithms": "fedavg", "seeds": 2, "rounds": 1, "model": "linear", "engine": "loop", "clients": 3}
    asked |= {"label": "paid", "group": "sex", "alpha": 3.0}
    found = [[run.test for run in ffalm.compare(data, **asked).results] for data in (frame, tmp_path / "loans.csv")]
    assert found[0] == found[1]
    with pytest.raises(UserError, match="one alpha"):
        ffalm.compare(frame, **{**asked, "alpha": [1.0, 3.0]})


def _forget_data() -> None:
    grid._dataset.cache_clear()
    grid._federations.clear()


def test_a_study_is_resumed_only_with_the_settings_data_and_engine_it_was_begun_with(tmp_path: Path) -> None:
    table, out = tmp_path / "loans.csv", tmp_path / "out"
    frame = pd.DataFrame({"a": range(90), "sex": ["m", "f"] * 45, "paid": [i % 3 % 2 for i in range(90)]})
    frame.to_csv(table, index=False)
    asked: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": 1, "clients": 2, "model": "linear"}
    asked |= {"rounds": 1, "seeds": 1, "device": "cpu", "out": out}
    ffalm.compare(table, "fedavg", **asked)
    config = parse(read(out / "config.toml"))
    assert config.engine == "auto"
    assert _begun_by(config, out) == "stacked"
    frame.assign(a=frame["a"] + (frame["a"] == 7)).to_csv(table, index=False)
    _forget_data()  # as another process would not know it
    with pytest.raises(UserError, match="its data has changed"):
        ffalm.compare(table, "fedavg", **asked, resume=True)
    frame.to_csv(table, index=False)
    _forget_data()
    ffalm.compare(table, "fedavg", **asked, resume=True)
    written = (out / "config.toml").read_text()
    (out / "config.toml").write_text(written.replace("lr = 0.05", "lr = 0.04"))
    with pytest.raises(UserError, match=r"settings in config\.toml have changed since the study was started"):
        compute_study(parse(read(out / "config.toml")), out, existing="resume")
