"""The run folder keeps whole rounds and nothing else, whatever happens."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ffalm import metrics
from ffalm.engines import Snapshot
from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.outcome import Outcome
from ffalm.runs import Result
from ffalm.studies.store import RunFolder, flat_tensors, locked, nested_tensors, outcome_of
from ffalm.system.files import json_text


def snapshot(round: int) -> Snapshot:
    model = {"weight": torch.randn(3, 2), "steps": torch.tensor(7)}
    return Snapshot(round, model, {"dual": torch.tensor(0.1, dtype=torch.float64)})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.start("seeds = [0]\n")
    return run


def test_a_snapshot_comes_back_bit_for_bit(folder: RunFolder) -> None:
    kept = snapshot(3)
    folder.save(kept)
    found = folder.snapshot(folder.saved_rounds()[-1])
    assert found is not None
    assert found.round == 3
    assert all(torch.equal(found.model[name], value) for name, value in kept.model.items())
    assert torch.equal(found.state["dual"], kept.state["dual"])


def test_vectors_by_name_and_parameter_come_back_from_a_flat_file() -> None:
    vectors = {"momentum": {"0.weight": torch.ones(2), "0.bias": torch.zeros(1)}, "drift": {"0.weight": torch.ones(3)}}
    flat = flat_tensors(vectors)
    assert set(flat) == {"momentum/0.weight", "momentum/0.bias", "drift/0.weight"}
    found = nested_tensors(flat)
    assert {name: set(inner) for name, inner in found.items()} == {name: set(inner) for name, inner in vectors.items()}
    assert torch.equal(found["drift"]["0.weight"], torch.ones(3))
    assert nested_tensors(flat_tensors({"dual": torch.ones(1)})).keys() == {"dual"}


def test_a_run_without_state_can_be_kept(folder: RunFolder) -> None:
    folder.save(Snapshot(1, {"weight": torch.ones(1)}, {}))
    found = folder.snapshot(folder.saved_rounds()[-1])
    assert found is not None
    assert found.state == {}


def test_the_best_round_so_far_goes_with_every_snapshot(folder: RunFolder) -> None:
    best = snapshot(3)
    folder.save(best, best)
    folder.save(snapshot(4), best)
    assert not (folder.path / "checkpoint" / "000003" / "kept").exists()  # it is that snapshot itself
    for number in (3, 4):
        found = folder.kept(number)
        assert found is not None
        assert found.round == 3
        assert torch.equal(found.model["weight"], best.model["weight"])
    assert folder.kept(0) is None
    assert (folder.snapshot(4) or best).round == 4


def test_the_last_two_snapshots_stay_on_disk(folder: RunFolder) -> None:
    assert folder.saved_rounds() == [0]
    for number in (1, 2, 12):
        folder.save(snapshot(number))
    assert sorted(path.name for path in (folder.path / "checkpoint").iterdir()) == ["000002", "000012"]
    assert folder.saved_rounds() == [0, 2, 12]


def test_going_back_gives_up_what_came_after(folder: RunFolder) -> None:
    folder.save(snapshot(1))
    folder.save(snapshot(2))
    found = folder.snapshot(1)
    assert found is not None
    assert found.round == 1
    assert folder.saved_rounds() == [0, 1]
    assert folder.snapshot(0) is None


def test_a_snapshot_that_was_being_written_when_the_process_died_is_ignored(folder: RunFolder) -> None:
    folder.save(snapshot(4))
    half = folder.path / "checkpoint" / ".ffalm-new.123"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    found = folder.snapshot(folder.saved_rounds()[-1])
    assert found is not None
    assert found.round == 4


def test_the_newer_of_two_snapshots_counts_when_the_older_could_not_be_removed(folder: RunFolder) -> None:
    folder.save(snapshot(4))
    old = folder.path / "checkpoint" / "000004"
    old.rename(folder.path / "aside")
    folder.save(snapshot(5))
    (folder.path / "aside").rename(old)
    found = folder.snapshot(folder.saved_rounds()[-1])
    assert found is not None
    assert found.round == 5


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "round.json"])
def test_a_truncated_checkpoint_is_named_and_left_alone(folder: RunFolder, name: str) -> None:
    folder.save(snapshot(4))
    file = folder.path / "checkpoint" / "000004" / name
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged") as caught:
        folder.snapshot(4)
    assert "000004" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == whole[: len(whole) // 2]


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "round.json", "kept/model.safetensors"])
def test_a_checkpoint_with_a_flipped_byte_is_not_resumed_from(folder: RunFolder, name: str) -> None:
    for number in (1, 2, 3):
        folder.append({"round": number})
        folder.save(snapshot(number), snapshot(1))
    file = folder.path / "checkpoint" / "000003" / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert folder.saved_rounds() == [0, 2]
    assert folder.problems() == [f"The checkpoint {file.parents[name.count('/')]} is damaged ({name})."]
    with pytest.raises(UserError, match=f"damaged .{name}"):
        folder.snapshot(3)


def test_a_checkpoint_whose_history_was_changed_is_not_resumed_from(folder: RunFolder) -> None:
    for number in (1, 2):
        folder.append({"round": number, "accuracy": 0.5})
        folder.save(snapshot(number))
    history = folder.path / "history.jsonl"
    history.write_text(history.read_text().replace('2, "accuracy": 0.5', '2, "accuracy": 0.6'))
    assert folder.saved_rounds() == [0, 1]
    assert len(RunFolder(folder.path).history(1)) == 1


def test_a_run_that_is_resumed_goes_on_with_the_digest_of_its_history(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        folder.append({"round": number})
        folder.save(snapshot(number))
    again = RunFolder(folder.path)
    again.snapshot(2)
    again.history(2)
    again.append({"round": 3})
    again.save(snapshot(3))
    assert again.saved_rounds() == [0, 2, 3]


def test_checkpoints_sort_as_numbers(folder: RunFolder) -> None:
    for number in (999_999, 1_000_000, 1_000_001):
        folder.save(snapshot(number))
    assert folder.saved_rounds() == [0, 1_000_000, 1_000_001]


def test_what_a_kill_left_half_written_is_removed(folder: RunFolder) -> None:
    dead = 2**22 + 1  # above the largest process number
    (folder.path / "checkpoint" / f".ffalm-new.{dead}").mkdir()
    (folder.path / f".ffalm-result.json.{dead}").touch()
    (folder.path / ".run.lock").touch()
    (folder.path / ".notes.2023").touch()  # a user's own
    folder.start("")
    assert sorted(path.name for path in folder.path.rglob(".*")) == [".notes.2023", ".run.lock"]


def test_a_disk_that_is_full_while_a_checkpoint_is_written_leaves_the_one_before(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(snapshot(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ffalm.studies.store.synced", full)
    with pytest.raises(OSError, match="No space left"):
        folder.save(snapshot(2))
    assert folder.saved_rounds() == [0, 1]


def test_history_is_cut_back_to_the_checkpoint(folder: RunFolder) -> None:
    for number in (1, 2, 3):
        folder.append({"round": number, "accuracy": number / 3})
    assert [record["round"] for record in folder.history(rounds=2)] == [1, 2]
    assert [record["round"] for record in folder.history()] == [1, 2]


def test_a_half_written_line_of_history_is_dropped(folder: RunFolder) -> None:
    folder.append({"round": 1, "accuracy": 0.1})
    with open(folder.path / "history.jsonl", "a") as file:
        file.write('{"round": 2, "accu')
    assert folder.history() == [{"round": 1, "accuracy": 0.1}]


def test_numbers_survive_the_history_exactly_and_undefined_stays_undefined(folder: RunFolder) -> None:
    folder.append({"round": 1, "accuracy": 0.1 + 0.2, "eod": math.nan})
    record = folder.history()[0]
    assert record["accuracy"] == 0.1 + 0.2
    assert math.isnan(record["eod"])


def test_a_list_that_stopped_being_finite_is_read_as_numbers(folder: RunFolder) -> None:
    folder.append({"round": 1, "duals": [0.5, math.nan, math.inf]})
    (record,) = folder.history()
    assert record["duals"][0] == 0.5
    assert all(math.isnan(dual) for dual in record["duals"][1:])


def test_a_diverged_run_has_no_intervals() -> None:
    tally = metrics.tally([0, 1] * 8, [0, 1, 1, 1] * 4, [0, 0, 1, 1] * 4)
    result = Result(tally.metrics(), [], {}, {}, tally, [])
    assert set(outcome_of(result, "", "", None).intervals) > {"accuracy", "dpd", "eod"}
    assert outcome_of(replace(result, diverged="It diverged."), "", "", None).intervals == {}


def test_json_is_valid_for_every_reader() -> None:
    assert json.loads(json_text({"a": [math.nan, math.inf, 1.5], "b": {"c": -math.inf}})) == {
        "a": [None, None, 1.5],
        "b": {"c": None},
    }
    place = Path("a", "b")
    assert json.loads(json_text({"folder": place, "gap": math.nan})) == {"folder": str(place), "gap": None}
    with pytest.raises(TypeError):
        json_text({"a": {1, 2}})


def test_a_finished_run_tells_what_it_came_to(folder: RunFolder) -> None:
    assert folder.outcome() is None
    folder.append({"round": 1, "accuracy": 0.5, "seconds": 2.0})
    outcome = Outcome(
        "FedAvg", "fedavg", 0, 0.3, {"accuracy": 0.5, "eod": math.nan}, {"accuracy": (0.4, 0.6)}, folder.history(), 2.0
    )
    tally = metrics.tally([0, 1, 1], [0, 1, 0], [0, 0, 1])
    own = {"test": [ScoreHistogram.zeros((2, 2), 1)]}
    result = Result(outcome.test, outcome.history, {"weight": torch.ones(2)}, {}, tally, [], client_scores=own)
    outcome = replace(outcome, confusion=outcome_of(result, "", "", None).confusion)
    folder.finish(result, outcome)
    found = folder.outcome()
    assert found is not None
    assert found.confusion == [[[1, 0], [0, 1]], [[0, 0], [1, 0]]]
    assert found.intervals == {"accuracy": (0.4, 0.6)}
    assert math.isnan(found.test["eod"])
    assert found.history == outcome.history
    when = folder.finished()
    assert when is not None
    os.utime(folder.path / "result.json", (0, 0))  # as copying a folder changes it
    assert folder.finished() == when
    assert folder.client_scores(1)[0]["test"].counts.shape == own["test"][0].counts.shape
    for name in ("model.safetensors", "client_scores.safetensors", "history.jsonl", "result.json"):
        whole = (folder.path / name).read_bytes()
        (folder.path / name).write_bytes(whole[:-1] + b" ")
        with pytest.raises(UserError, match=f"{name} of a finished run is missing or damaged"):
            folder.outcome()
        (folder.path / name).write_bytes(whole)
    (folder.path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors of a finished run is missing"):
        folder.outcome()


def test_a_result_of_another_run_does_not_finish_a_run(folder: RunFolder) -> None:
    folder.save(snapshot(1))
    (folder.path / "result.json").write_text('{"label": "of another run"}')
    with pytest.raises(UserError, match=r"checksums\.json of a finished run is missing"):
        folder.outcome()


def test_a_damaged_result_is_named(folder: RunFolder) -> None:
    (folder.path / "result.json").write_text('{"label": "x"')
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        folder.outcome()


def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffalm.studies.store._LOCK_SECONDS", 0.2)
    with locked(tmp_path), pytest.raises(UserError, match="Another process is working"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_nothing_in_a_run_folder_is_a_pickle(folder: RunFolder) -> None:
    folder.save(snapshot(1))
    suffixes = {path.suffix for path in folder.path.rglob("*") if path.is_file()}
    assert suffixes <= {".toml", ".jsonl", ".json", ".safetensors", ""}
