"""Federations of what people have: texts, data frames, torch datasets, datasets of Hugging Face."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import ffalm
from ffalm.errors import UserError
from ffalm.federation import Federation
from ffalm.metrics import tally

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
S = np.array([0, 0, 1, 1, 0, 1])
LABELS = np.array(["no", "yes"])[Y]
GROUPS = ["man" if one else "woman" for one in S]


class Rows(Dataset[Any]):
    """A user's own dataset of torch."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> Any:
        return self.row(place)


class HuggingFace:
    """Stands for a `datasets.Dataset`, as far as it is asked."""

    def __init__(self, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)

    def with_format(self, kind: str) -> HuggingFace:
        assert kind == "numpy"
        return self

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        return {name: column[rows] for name, column in self.columns.items()}


def test_labels_and_groups_may_be_texts() -> None:
    fed = Federation.from_arrays([(X, LABELS, GROUPS)], test=(X, pd.Series(LABELS), pd.Categorical(GROUPS)),
                                 favourable="yes")  # fmt: skip
    assert (fed.task.label_names, fed.task.group_names, fed.task.favourable) == (("no", "yes"), ("man", "woman"), 1)
    assert fed.clients[0].y.tolist() == Y.tolist()
    assert fed.clients[0].group.tolist() == (1 - S).tolist()
    assert fed.test is not None and torch.equal(fed.test.group, fed.clients[0].group)


def test_texts_are_numbered_over_all_parts_alike() -> None:
    other = (X, np.where(Y, "yes", "maybe"), GROUPS)
    fed = Federation.from_arrays([(X, LABELS, GROUPS), other], favourable="no")
    assert fed.task.label_names == ("maybe", "no", "yes")
    assert (fed.clients[0].y.tolist(), fed.clients[1].y.tolist()) == ((1 + Y).tolist(), (2 * Y).tolist())


def test_a_missing_text_or_the_one_that_means_unknown_is_no_group() -> None:
    for missing, unknown in ((None, None), (float("nan"), None), ("?", "?")):
        groups = [missing, *GROUPS[1:]]
        task = Federation.from_arrays([(X, Y, groups)], unknown=unknown).task
        assert (task.group_names, task.excluded) == (("man", "woman", "unknown"), 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clients": [(X, LABELS, S)]}, "say which is favourable"),
        ({"clients": [(X, LABELS, S)], "favourable": "yess"}, "did you mean 'yes'"),
        ({"clients": [(X, LABELS, S)], "favourable": 1}, "no favourable label 1"),
        ({"clients": [(X, LABELS, S), (X, Y, S)], "favourable": "yes"}, "labels of the client 1 must be texts"),
        ({"clients": [(X, [None, *LABELS[1:]], S)], "favourable": "yes"}, "labels of the client 0 are missing"),
        ({"clients": [(X, Y, ["a"] * 6)]}, "groups are all the same"),
        ({"clients": [(np.zeros((2000, 1)), [0] * 2000, list(map(str, range(2000))))]}, "2,000 different groups"),
        ({"clients": [HuggingFace(x=X, label=Y, group=S)]}, "Its columns are x, label, group"),
        ({"clients": [Rows(lambda place: (X[place], Y[place]))]}, "each must be"),
        ({"clients": [Rows(lambda place: (X[0][: place % 2], 0, 0))]}, "same shape"),
        ({"clients": [(pd.DataFrame({"a": Y, "city": GROUPS}), Y, S)]}, r"column 'city' .*ffalm\.load"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Federation.from_arrays(**given)


@pytest.mark.parametrize(
    "client",
    [
        TensorDataset(*map(torch.as_tensor, (X, Y, S))),
        Subset(TensorDataset(*map(torch.as_tensor, (X, Y, S))), range(6)),
        Rows(lambda place: (X[place], int(Y[place]), torch.tensor(S[place]))),
        Rows(lambda place: {"x": torch.tensor(X[place]), "y": Y[place], "group": S[place], "id": place}),
        HuggingFace(x=X, y=Y, group=S),
        {"x": X, "y": Y, "group": S},
        (pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}, index=list("abcdef")), pd.Series(Y), pd.Series(S)),
    ],
    ids=["TensorDataset", "Subset", "Dataset", "Dataset of dicts", "Hugging Face", "dict", "DataFrame"],
)
def test_datasets_and_frames_give_the_same_federation_as_arrays(client: Any) -> None:
    found = Federation.from_arrays([client]).clients[0]
    assert torch.equal(found.x, torch.tensor(X))
    assert (found.y.tolist(), found.group.tolist()) == (Y.tolist(), S.tolist())


def test_columns_of_frames_are_matched_by_name_in_training_and_in_prediction() -> None:
    frame = pd.DataFrame(X / 12, columns=["a", "b"])
    turned = frame[["b", "a"]]
    found = Federation.from_arrays([(frame, Y, S), (turned, Y, S)], (turned, Y, S))
    assert found.clients[1].x.equal(found.clients[0].x) and found.validation is not None
    assert found.validation.x.equal(found.clients[0].x)
    with pytest.raises(UserError, match="features of the client 1 have the columns a, c, and should have a, b"):
        Federation.from_arrays([(frame, Y, S), (frame.set_axis(["a", "c"], axis=1), Y, S)])
    result = ffalm.simulate("fedavg", found, rounds=1, model="linear")
    assert np.array_equal(result.predict_proba(turned), result.predict_proba(frame))
    assert np.array_equal(result.predict_proba(frame.to_numpy()), result.predict_proba(frame))
    with pytest.raises(UserError, match="features have the columns a, c"):
        result.predict(frame.set_axis(["a", "c"], axis=1))


def test_a_frame_may_mix_numbers_and_booleans() -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": Y.astype(bool)})
    assert Federation.from_arrays([(frame, Y, S)]).clients[0].x[:, 1].tolist() == Y.tolist()


def test_a_real_dataset_of_hugging_face_is_taken() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": X.tolist(), "y": LABELS.tolist(), "group": GROUPS})
    fed = Federation.from_arrays([whole], favourable="yes")
    assert torch.equal(fed.clients[0].x, torch.tensor(X)) and fed.clients[0].y.tolist() == Y.tolist()
    columns = {"a": [i % 7 for i in range(90)], "sex": ["m", "f"] * 45, "ok": [i % 3 % 2 for i in range(90)]}
    table = datasets.Dataset.from_dict(columns)
    assert len(ffalm.load(table, label="ok", group="sex", favourable=1, clients=2).clients) == 2


def test_features_that_are_not_scaled_give_a_warning_with_their_columns() -> None:
    income = np.column_stack([X, 30_000 + 1000 * X[:, 0]])
    with pytest.warns(ffalm.UnscaledFeaturesWarning, match=r"column 2 is above 100.*\(x - mean\) / std") as told:
        Federation.from_arrays([(income, Y, S)])
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_arrays([(np.zeros((6, 3, 2, 2), dtype=np.uint8) + 200, Y, S)])


def test_a_tally_takes_groups_as_texts() -> None:
    assert tally(Y, [0, 1, 0, 0, 0, 1], GROUPS).dpd() == tally(Y, [0, 1, 0, 0, 0, 1], 1 - S).dpd()
