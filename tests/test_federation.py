"""Federations of arrays: what they hold, and one clear sentence for each thing they cannot."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ffalm
from ffalm.data.types import Dataset, Examples, Task
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.partition import Partition

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
S = np.array([0, 0, 1, 1, 0, 1])
GOOD = (X, Y, S)
MAKE: Any = Federation  # of what no type checker lets through
EXAMPLES: Any = Examples


def changed(**parts: Any) -> tuple[Any, Any, Any]:
    return parts.get("x", X), parts.get("y", Y), parts.get("s", S)


def refusal(clients: Any, **parts: Any) -> str:
    """The sentence with which a federation is refused."""
    with pytest.raises(UserError) as refused:
        Federation.from_arrays(clients, **parts)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, list], ids=["numpy", "torch", "lists"])
def test_numpy_torch_and_lists_give_the_same_federation(kind: Any) -> None:
    arrays = tuple(kind(values.tolist() if kind is list else values) for values in GOOD)
    fed = Federation.from_arrays([arrays, arrays], validation=arrays, test=arrays)
    for part in (*fed.clients, fed.validation, fed.test):
        assert part is not None
        assert torch.equal(part.x.float(), torch.tensor(X))
        assert torch.equal(part.y, torch.tensor(Y))
        assert torch.equal(part.group, torch.tensor(S))
        assert part.y.dtype == part.group.dtype == torch.int64


def test_counts_are_rows_per_client_label_and_group() -> None:
    fed = Federation.from_arrays([GOOD, changed(s=np.zeros(6, dtype=int))])
    assert fed.counts().tolist() == [[[2, 1], [1, 2]], [[3, 0], [3, 0]]]
    assert fed.client_names == ("0", "1")


def test_the_summary_has_sizes_and_shares() -> None:
    rows = Federation.from_arrays([GOOD, changed(y=np.array([1, 1, 1, 0, 0, 1]))]).summary()
    assert [row["rows"] for row in rows] == [6, 6]
    assert rows[1]["label 1"] == pytest.approx(4 / 6)
    assert rows[0]["group 0"] == pytest.approx(0.5)


def test_labels_and_groups_are_counted_over_all_parts() -> None:
    fed = Federation.from_arrays(
        [changed(s=np.array([0, 1, 2, 0, 1, 2]))], test=changed(y=np.array([0, 1, 2, 1, 0, 1]))
    )
    assert (fed.task.labels, fed.task.groups) == (3, 3)


def test_booleans_and_whole_floats_are_labels_too() -> None:
    fed = Federation.from_arrays([changed(y=Y.astype(bool), s=S.astype(float))])
    assert fed.clients[0].y.tolist() == Y.tolist()
    assert fed.clients[0].group.tolist() == S.tolist()


def test_bytes_stay_bytes_and_float64_keeps_its_digits() -> None:
    pictures = np.zeros((6, 3, 4, 4), dtype=np.uint8)
    assert Federation.from_arrays([changed(x=pictures)]).clients[0].x.dtype == torch.uint8
    assert Federation.from_arrays([changed(x=X.astype(np.float64))]).clients[0].x.dtype == torch.float64
    assert Federation.from_arrays([changed(x=X.astype(np.int32))]).clients[0].x.dtype == torch.float32


def test_a_one_hot_table_of_bytes_is_no_picture_whose_ones_are_nearly_black() -> None:
    encoded = np.eye(3, dtype=np.uint8)[[0, 1, 2, 0, 1, 2]]
    fed = Federation.from_arrays([changed(x=encoded), changed(x=encoded)], test=changed(x=encoded))
    assert fed.test is not None
    assert all(part.x.dtype == torch.float32 for part in (*fed.clients, fed.test))
    beside = Federation.from_arrays([changed(x=encoded), changed(x=encoded.astype(np.float64))])
    assert torch.equal(beside.clients[0].x.double(), beside.clients[1].x)
    pixels = Federation.from_arrays([changed(x=encoded), changed(x=encoded * 255)])
    assert all(client.x.dtype == torch.uint8 for client in pixels.clients)


def test_read_only_reversed_and_unsigned_arrays_are_taken_as_they_are() -> None:
    frozen = X.copy()
    frozen.setflags(write=False)
    assert torch.equal(Federation.from_arrays([changed(x=frozen)]).clients[0].x, torch.tensor(X))
    backwards = Federation.from_arrays([(X[::-1], Y[::-1], S[::-1])]).clients[0]
    assert backwards.y.tolist() == Y[::-1].tolist()
    assert Federation.from_arrays([changed(y=Y.astype(np.uint16))]).clients[0].y.tolist() == Y.tolist()


def test_a_data_frame_is_an_array() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "s": S})
    client = Federation.from_arrays([(frame[["a", "b"]], frame["y"], frame["s"])]).clients[0]
    assert torch.equal(client.x.float(), torch.tensor(X))
    assert client.group.tolist() == S.tolist()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_finite_are_refused_with_their_place_and_number(value: float) -> None:
    bad = X.copy()
    bad[1, 0] = bad[3, 1] = value
    sentence = refusal([GOOD, changed(x=bad)])
    assert "client 1" in sentence
    assert "2 feature values" in sentence
    assert "validation part" in refusal([GOOD], validation=changed(x=bad))


def test_features_too_large_to_be_summed_are_still_finite() -> None:
    large = np.full_like(X, 3e38)
    with pytest.warns(ffalm.UnscaledFeaturesWarning, match="column 0, 1 is above 100"):
        federation = Federation.from_arrays([changed(x=large)])
    assert torch.equal(federation.clients[0].x, torch.tensor(large))


def test_an_empty_client_is_refused_by_its_name() -> None:
    empty = (X[:0], Y[:0], S[:0])
    assert "client 1" in refusal([GOOD, empty])
    assert "client 0" in refusal([empty])
    assert "test part" in refusal([GOOD], test=empty)


def test_no_clients_at_all_are_refused() -> None:
    assert "at least one client" in refusal([])


def test_a_group_that_no_client_has_is_refused() -> None:
    assert "group '1'" in refusal([changed(s=np.zeros(6, dtype=int))])
    assert "group '2'" in refusal([GOOD], test=changed(s=np.array([0, 1, 2, 0, 1, 2])))
    assert "group '1'" in refusal([changed(s=np.array([0, 2, 0, 2, 0, 2]))])


@pytest.mark.parametrize("arrays", [(X, Y), (X, Y, S, S), X, None, {"x": X, "y": Y, "sex": S}])
def test_a_client_that_is_not_a_triple_is_refused(arrays: Any) -> None:
    assert "(x, y, group)" in refusal([arrays])


def test_a_test_part_that_is_not_a_triple_is_refused() -> None:
    assert "test part" in refusal([GOOD], test=(X, Y))


@pytest.mark.parametrize("part", ["y", "s"])
@pytest.mark.parametrize(
    "values",
    [
        np.array([0, 1, 0.5, 1, 0, 1]),
        np.array([0, 1, -1, 1, 0, 1]),
        np.array([0, 1, np.nan, 1, 0, 1]),
        np.array(["a", "b", "a", "b", "a", "b"]),
        ["a", "b", "a", "b", "a", "b"],
        np.array([0, 1, None, 1, 0, 1], dtype=object),
    ],
    ids=["half", "negative", "nan", "text", "list of text", "objects"],
)
def test_labels_and_groups_that_are_no_whole_numbers_are_refused(part: str, values: Any) -> None:
    sentence = refusal([GOOD, changed(**{part: values})])
    assert ("labels" if part == "y" else "groups") in sentence
    assert "client 1" in sentence


@pytest.mark.parametrize(
    "x", [np.array([["a", "b"]] * 6), [[1.0, 2.0], [3.0]], 3.0], ids=["text", "ragged", "a number"]
)
def test_features_that_are_no_numbers_are_refused(x: Any) -> None:
    assert "features of the client 0" in refusal([changed(x=x)])


def test_different_numbers_of_rows_are_refused() -> None:
    for wrong in (changed(y=Y[:5]), changed(s=S[:4]), changed(x=X[:3]), changed(y=Y.reshape(6, 1))):
        assert "client 0 needs one label and one group per row" in refusal([wrong])


def test_different_feature_shapes_are_refused() -> None:
    assert "client 1" in refusal([GOOD, changed(x=X[:, :1])])
    assert "test part" in refusal([GOOD], test=changed(x=np.zeros((6, 3), dtype=np.float32)))


def test_a_favourable_label_that_does_not_exist_is_refused() -> None:
    assert "favourable" in refusal([GOOD], favourable=2)


def test_a_data_sets_training_rows_go_to_clients_and_its_other_parts_stay_whole() -> None:
    y, group = torch.arange(80) % 2, torch.arange(80) // 40
    rows = Examples(torch.arange(80.0).view(80, 1), y, group)
    task = Task("made", favourable=0, label_names=("yes", "no"), group_names=("a", "b"))
    data = Dataset(task, rows, rows.take(torch.arange(0, 80, 9)), rows.take(torch.arange(0, 80, 7)), notes=("a note",))
    fed = Federation.from_dataset(data, Partition("iid", 4), seed=3)
    values = torch.cat([client.x.flatten() for client in fed.clients])
    assert values.sort().values.tolist() == list(range(80))
    assert all(torch.equal(client.y, client.x.flatten().long() % 2) for client in fed.clients)
    assert (fed.validation, fed.test, fed.task, fed.notes) == (data.validation, data.test, task, ("a note",))


def test_an_unknown_source_or_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'census'"):
        ffalm.load("cencus")
    with pytest.raises(UserError, match="by its name, or a table by its path or as a data frame; got None"):
        ffalm.load(None)
    with pytest.raises(UserError, match="did you mean 'balanced'"):
        ffalm.load("census", partition="balansed")  # type: ignore[arg-type]


def test_a_federation_is_shown_in_a_few_words() -> None:
    arrays = Federation.from_arrays([GOOD, GOOD], test=GOOD)
    assert repr(arrays) == (
        "Federation(arrays: 2 clients of 6 to 6 rows, validation 0, test 6 rows, 2 labels, 2 groups)"
    )
    dealt = repr(ffalm.load("census", rows=600, clients=3, partition="balanced", alpha=0.3))
    assert dealt == "Federation(census: 3 clients of 66 to 66 rows, validation 60, test 120 rows, 2 labels, 2 groups)"


def test_rows_that_a_partition_leaves_out_are_told_of() -> None:
    told = "The partition 'balanced' gave clients 198 of 420 training rows; the rest is unused."
    assert told in ffalm.load("census", rows=600, clients=3, partition="balanced", alpha=0.3).notes


def test_no_training_row_is_left_out_unless_a_partition_is_asked_to() -> None:
    for loaded in (ffalm.load("census", rows=600, clients=3), ffalm.load("census", rows=600, partition="iid")):
        assert not any("unused" in note for note in loaded.notes)
        assert int(loaded.counts().sum()) == 420


def test_arrays_whose_indexes_have_the_rows_in_different_orders_are_noted() -> None:
    rows = np.arange(40)
    x, y, group = pd.DataFrame({"age": rows / 40.0}), pd.Series(rows % 2), pd.Series(rows // 2 % 2)
    assert ffalm.Federation.from_arrays([(x, y, group)], test=(x, y, group)).notes == ()
    (note,) = ffalm.Federation.from_arrays([(x, y, group)], test=(x, y[::-1], group)).notes
    assert "features of the test part and labels of the test part hold the same rows in different orders" in note


def test_settings_that_a_partition_does_not_use_are_refused(tmp_path: Path) -> None:
    for asked in ({"partition": "iid", "alpha": 0.3}, {"partition": "iid", "alpha": [0.3, 5]}):
        with pytest.raises(UserError, match="'alpha' would change nothing, since the partition 'iid' does not use it"):
            ffalm.compare("census", ["fedavg"], data_settings={"rows": 300}, seeds=1, rounds=1, **asked)
    owned: Any = {"label": "hired", "group": "sex", "favourable": "yes", "owner": "bank"}
    with pytest.raises(UserError, match="'clients' would change nothing, since the partition 'silos' does not use it"):
        ffalm.load(owned_people(tmp_path), clients=4, **owned)
    assert len(ffalm.load(owned_people(tmp_path), clients=10, alpha=5.0, **owned).clients) == 3


def owned_people(tmp_path: Path) -> str:
    """A table of three owners."""
    rows = np.arange(240)
    frame = pd.DataFrame(
        {
            "age": rows % 37,
            "sex": np.where(rows % 2 == 0, "woman", "man"),
            "bank": np.array(["north", "south", "west"])[rows % 3],
            "hired": np.where(rows // 2 % 2 == 0, "yes", "no"),
        }
    )
    frame.to_csv(tmp_path / "people.csv", index=False)
    return str(tmp_path / "people.csv")


def test_owners_of_held_out_rows_are_known(tmp_path: Path) -> None:
    settings: Any = {"label": "hired", "group": "sex", "favourable": "yes"}
    federation = ffalm.load(owned_people(tmp_path), owner="bank", **settings)
    assert federation.client_names == ("north", "south", "west")
    for part, whole in (("validation", federation.validation), ("test", federation.test)):
        own = federation.own_parts(part)  # type: ignore[arg-type]
        assert own is not None and whole is not None
        assert sum(map(len, own)) == len(whole) and min(map(len, own)) > 0
    assert ffalm.load(owned_people(tmp_path), clients=2, **settings).own_parts("test") is None


def test_a_site_that_is_left_out_is_tested_on_all_its_rows(tmp_path: Path) -> None:
    settings: Any = {"label": "hired", "group": "sex", "favourable": "yes", "owner": "bank"}
    whole = ffalm.load(owned_people(tmp_path), **settings)
    federation = ffalm.load(owned_people(tmp_path), leave_out="south", **settings)
    assert federation.client_names == ("north", "west")
    assert federation.test is not None and len(federation.test) == 80
    assert federation.validation is not None and whole.validation is not None
    own = whole.own_parts("validation")
    assert own is not None and len(federation.validation) == len(whole.validation) - len(own[1])
    assert [len(one) for one in federation.clients] == [len(whole.clients[0]), len(whole.clients[2])]
    assert any("'south' took no part" in note for note in federation.notes)
    with pytest.raises(UserError, match="south"):
        ffalm.load(owned_people(tmp_path), leave_out="soth", **settings)
    with pytest.raises(UserError, match="owner column"):
        ffalm.load("census", leave_out="south")


def test_an_unknown_group_of_arrays_is_not_compared() -> None:
    federation = Federation.from_arrays([changed(s=np.array([0, 1, -1, 1, 0, 1]))], validation=GOOD, unknown=-1)
    assert federation.task.excluded == 1 and federation.task.group_names[-1] == "unknown"
    assert federation.clients[0].group.tolist() == [0, 1, 2, 1, 0, 1]


def test_a_data_frame_is_loaded_like_a_file(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": [i % 7 for i in range(90)], "sex": ["m", "f"] * 45, "paid": [i % 3 % 2 for i in range(90)]}
    )
    frame.to_csv(tmp_path / "loans.csv", index=False)
    settings: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": 1, "clients": 2}
    of_file, of_frame = (
        ffalm.load(data, **settings) for data in (tmp_path / "loans.csv", frame.set_index("a", drop=False))
    )
    assert torch.equal(of_file.clients[0].x, of_frame.clients[0].x)
    assert of_frame.task.label_names == of_file.task.label_names


@pytest.mark.parametrize("data", [None, 3, ["census"], b"census", object()])
def test_what_is_no_data_is_refused(data: Any) -> None:
    with pytest.raises(UserError, match="Give a data source by its name, or a table"):
        ffalm.load(data)


def test_the_favourable_label_may_be_given_by_its_name() -> None:
    part = (np.zeros((4, 1)), [0, 1, 2, 0], [0, 1, 0, 1])
    assert ffalm.Federation.from_arrays([part], favourable="2").task.favourable == 2
    for wrong in ("yes", 1.5):
        with pytest.raises(UserError, match="favourable"):
            ffalm.Federation.from_arrays([part], favourable=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("clients", [None, 1.5, "ab", {"a": 1}, np.zeros((3, 3))])
def test_clients_that_are_no_list_are_refused(clients: Any) -> None:
    with pytest.raises(UserError, match="The clients must be a list"):
        ffalm.Federation.from_arrays(clients)


def test_group_labels_cross_favourable_and_group_and_share_the_features() -> None:
    fed = Federation.from_arrays([(X, [0, 1, 2, 1, 0, 2], S), GOOD], validation=GOOD, test=GOOD, favourable=2)
    crossed = fed.with_group_labels()
    assert crossed.clients[0].y.tolist() == [0, 0, 3, 1, 0, 3]
    assert crossed.clients[0].x is fed.clients[0].x
    assert crossed.validation is not None
    assert crossed.validation.y.tolist() == S.tolist()
    assert crossed.test is None
    assert crossed.task.label_names == ("not 2, 0", "not 2, 1", "2, 0", "2, 1")
    assert torch.equal(crossed.clients[0].group, fed.clients[0].group)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (lambda fed: fed.alone(-1), "number from 0 to 0; got -1"),
        (lambda fed: fed.alone("x"), "number from 0 to 0"),
        (lambda fed: fed.own_parts("train"), "no part of held-out rows 'train'"),
        (lambda fed: fed.first_rows(-1), "whole number from 0 up"),
        (lambda fed: MAKE([None], None, None, fed.task), "Clients are a list of Examples"),
        (lambda fed: MAKE(fed.clients, "x", None, fed.task), "Clients are a list of Examples"),
        (lambda fed: MAKE(fed.clients, None, None, "task"), "is a Task; got 'task'"),
        (lambda fed: Federation(fed.clients, None, None, fed.task, ("a", "b")), "1 clients, with one name each"),
        (lambda _: EXAMPLES(X, Y, S), "must be tensors"),
    ],
)
def test_what_is_no_part_of_a_federation_is_refused(asked: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        asked(Federation.from_arrays([GOOD]))


@pytest.mark.parametrize(("labels", "wrong"), [([0, 1, -1], -1), ([0, 1, 2], 2)])
def test_a_label_that_the_task_lacks_is_named(labels: list[int], wrong: int) -> None:
    rows = Examples(torch.zeros(3, 2), torch.tensor(labels), torch.tensor([0, 1, 0]))
    with pytest.raises(UserError, match=f"has the label {wrong}, but the task 'two' has 2 labels"):
        Federation((rows,), None, None, Task("two", label_names=("0", "1"), group_names=("0", "1")))


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        ("census", {"n_clients": 3}, "no argument of load 'n_clients': did you mean 'clients'?"),
        ("census", {"random_state": 3}, "no argument of load 'random_state': did you mean 'seed'?"),
        ("frame", {"label": "y", "sensitive_features": "g"}, "'sensitive_features': did you mean 'group'?"),
    ],
)
def test_an_argument_as_other_libraries_call_it_is_answered_with_ours(
    data: str, settings: dict[str, Any], words: str
) -> None:
    """Not with the settings of the source, among which it is not."""
    given: Any = pd.DataFrame({"y": [0, 1], "g": ["a", "b"]}) if data == "frame" else data
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        ffalm.load(given, **settings)
