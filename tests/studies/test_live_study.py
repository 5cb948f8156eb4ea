"""A study while it runs, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.federate.makers import config, world

import ffalm
from ffalm.errors import UserError
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.studies.live_study import fingerprint, live_page


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live") / "study"
    names = ["fedavg", "ffalm"]
    ffalm.compare("census", names, seeds=1, rounds=2, clients=2, data_settings={"rows": 300}, out=folder)
    return folder


def test_a_finished_study_is_complete(study: Path) -> None:
    page, complete = live_page(study)
    assert complete
    assert "Still running" not in page
    assert "The answer" in page


def test_a_study_that_runs_shows_what_is_finished_and_the_rounds_of_the_rest(study: Path) -> None:
    before = fingerprint(study)
    result = study / "runs" / "ffalm-alpha-5-seed-0" / "result.json"
    hidden = result.rename(result.with_name(".hidden"))
    try:
        page, complete = live_page(study)
        assert fingerprint(study) != before
    finally:
        hidden.rename(result)
    assert not complete
    assert "Still running: 1 of 2 runs finished, 1 in round 2." in page
    assert "Accuracy ↑ (%) by round for FedAvg, FFALM (safe)." in page
    assert fingerprint(study) == before


def test_a_folder_of_studies_names_one_of_them(study: Path) -> None:
    """Such as that of `--leave-out each`, which has settings and no rounds of its own."""
    (study.parent / "config.toml").touch()
    for read in (live_page, ffalm.Study.load):
        with pytest.raises(UserError, match=f"holds studies: name one of them, such as {study}"):
            read(study.parent)


def test_before_the_first_run_is_finished_there_is_a_page_too(study: Path) -> None:
    results = list(study.glob("runs/*/result.json"))
    hidden = [result.rename(result.with_name(".hidden")) for result in results]
    try:
        page, complete = live_page(study)
    finally:
        for old, new in zip(hidden, results, strict=True):
            old.rename(new)
    assert not complete
    assert "Still running: 0 of 2 runs finished, 2 in round 2." in page


def test_a_federation_is_shown_while_it_trains_and_when_it_is_done(tmp_path: Path) -> None:
    coordinate(config(training={"rounds": 2}), tmp_path / "run", world(tmp_path), pause=0.001)
    page, complete = live_page(tmp_path)
    assert complete
    assert "over 3 sites" in page
    assert "Metrics by client" in page
    for name in ("result.json", "study.json"):
        (tmp_path / "run" / name).unlink()
    page, complete = live_page(tmp_path)
    rounds = len((tmp_path / "run" / "history.jsonl").read_text().splitlines())
    assert not complete
    assert f"Still running: round {rounds} finished." in page
    (tmp_path / "run" / "config.toml").unlink()
    with pytest.raises(UserError, match="cannot be read yet"):
        live_page(tmp_path)


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match="nothing to watch"):
        live_page(tmp_path)


@pytest.mark.parametrize("file", ["federation.toml", "config.toml"])
def test_a_training_that_has_not_begun_has_a_page_that_waits(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("")
    page, complete = live_page(tmp_path)
    assert not complete
    assert f"Training in {tmp_path.name}" in page and "No round is finished yet" in page


def test_the_page_of_a_federation_says_what_is_waited_for_and_why_the_run_has_stopped(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for file in (tmp_path / "federation.toml", tmp_path / "run" / "config.toml"):
        file.write_text("")
    status = tmp_path / "run" / "status.json"
    waits = "as soon as it ends. Waiting for west."
    for state, shown in (("waiting", waits), ("stopped", "The run has stopped. Waiting for west.")):
        before = fingerprint(tmp_path)
        status.write_text(json.dumps({"state": state, "round": 0, "message": "Waiting for west."}))
        assert fingerprint(tmp_path) != before
        assert shown in live_page(tmp_path)[0] and shown in live_page(tmp_path / "run")[0]
    status.write_text(json.dumps({"state": "training", "round": 0, "message": "Round 1."}))
    assert "No round is finished yet" in live_page(tmp_path)[0]
    status.write_text("[")
    assert "No round is finished yet" in live_page(tmp_path)[0]
