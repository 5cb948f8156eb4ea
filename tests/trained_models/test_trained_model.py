"""Trained models: what a run gives, saves and loads again predicts new rows."""

from __future__ import annotations

import copy
import functools
import pickle
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import ffalm
from ffalm.errors import UserError


def people(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """Loans by sex and income."""
    draw = np.random.default_rng(seed)
    sex = draw.choice(["female", "male"], rows)
    income = draw.normal(30 + 6 * (sex == "male"), 8).round(1)
    job = draw.choice(["cook", "nurse", "clerk"], rows)
    paid = np.where(income + draw.normal(0, 4, rows) > 33, "yes", "no")
    return pd.DataFrame({"sex": sex, "income": income, "job": job, "paid": paid})


@pytest.fixture(scope="module")
def federation() -> ffalm.Federation:
    return ffalm.load(people(), label="paid", group="sex", favourable="yes", clients=2)


@pytest.fixture(scope="module")
def result(federation: ffalm.Federation) -> ffalm.Result:
    return ffalm.simulate("fedavg", federation, rounds=3, lr=0.5)


def test_a_result_predicts_labels_by_name_from_a_table(federation: ffalm.Federation, result: ffalm.Result) -> None:
    frame = people(50, 1)
    chances = result.predict_proba(frame)
    assert chances.shape == (50, 2) and np.allclose(chances.sum(1), 1)
    assert result.predict(frame).tolist() == ["yes" if one > 0.5 else "no" for one in chances[:, 1]]
    assert federation.test is not None
    own = result.model.decide(federation.test.x)  # encoded features are taken too
    assert float((own == federation.test.y).double().mean()) == pytest.approx(result.test["accuracy"])


def test_a_saved_model_predicts_the_same(result: ffalm.Result, tmp_path: Path) -> None:
    frame = people(50, 1).drop(columns="paid")
    loaded = ffalm.load_model(result.save(tmp_path / "model"))
    assert (loaded.predict(frame) == result.predict(frame)).all()
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert np.allclose(loaded.predict_proba(tmp_path / "new.csv"), result.predict_proba(frame))
    assert loaded.facts is not None and loaded.facts.counts == result.tally.confusion.tolist()  # type: ignore[union-attr]
    assert "paid" in repr(loaded)
    assert loaded.card() == result.model.card() == (tmp_path / "model" / "card.md").read_text(encoding="utf-8")


def test_arrays_get_labels_as_numbers() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    part = (x, (x[:, 0] > 0).long(), torch.arange(60) % 2)
    result = ffalm.simulate("fedavg", ffalm.Federation.from_arrays([part, part], test=part), rounds=1)
    predicted = result.predict(x.numpy())
    assert predicted.dtype == np.int64
    assert float((predicted == part[1].numpy()).mean()) == pytest.approx(result.test["accuracy"])
    with pytest.raises(UserError, match="takes rows of shape"):
        result.predict(x[:, 1:])
    with pytest.raises(UserError, match="missing or not finite"):
        result.predict_proba(np.full((2, 3), np.nan))
    table = pd.DataFrame(x.numpy(), columns=["a", "b", "c"])
    assert (result.predict(table) == predicted).all()
    told = "trained on 3 features without names: give it an array, or a table with those columns alone, in their order"
    with pytest.raises(UserError, match=f"{told}; this table has 4"):
        result.predict(table.assign(group="m"))


def test_a_model_of_ones_own_needs_its_function_again(federation: ffalm.Federation, tmp_path: Path) -> None:
    def factory() -> nn.Module:
        return nn.Linear(federation.first_rows(1).x.shape[1], 2)

    result = ffalm.simulate("fedavg", federation, model=factory, rounds=1)
    expected = result.predict(people(20, 1)).tolist()
    place = result.save(tmp_path / "own")
    with pytest.raises(UserError, match="must be a function"):
        ffalm.load_model(place, model=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="must return a module; got int"):
        ffalm.load_model(place, model=lambda: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="model=FUNCTION"):
        ffalm.load_model(place)
    assert ffalm.load_model(place, model=factory).predict(people(20, 1)).tolist() == expected
    with pytest.raises(
        UserError, match=r"do not fit this model: .* the function, with which it was trained\. size mismatch for weight"
    ):
        ffalm.load_model(place, model=lambda: nn.Linear(2, 2))
    assert pickle.loads(pickle.dumps(result)).test == result.test


def two_logits() -> nn.Module:
    return nn.Linear(3, 2)


def test_copies_of_a_result_predict_with_a_model_of_ones_own() -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    fed = ffalm.Federation.from_arrays([(x, (x[:, 0] > 0).long(), torch.arange(40) % 2)])
    local, importable = (
        ffalm.simulate("fedavg", fed, rounds=1, model=model) for model in (lambda: nn.Linear(3, 2), two_logits)
    )
    lock = threading.Lock()
    locked = replace(local, factory=functools.partial(lambda _: nn.Linear(3, 2), lock))  # which cannot be copied
    for one in (copy.copy(local), copy.deepcopy(local), copy.deepcopy(locked), pickle.loads(pickle.dumps(importable))):
        assert np.array_equal(one.predict(x), local.predict(x))
    with pytest.raises(UserError, match="a function of yours"):
        pickle.loads(pickle.dumps(local)).predict(x)


def test_a_result_is_read_where_the_function_of_its_model_is_not_known(
    federation: ffalm.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = replace(ffalm.simulate("fedavg", federation, rounds=1), factory=two_logits)
    kept = pickle.dumps(result)
    monkeypatch.delattr(sys.modules[__name__], "two_logits")
    assert repr(pickle.loads(kept)) == repr(result)


def test_the_group_is_refused_where_there_are_no_thresholds(result: ffalm.Result) -> None:
    with pytest.raises(UserError, match="leave `group` out"):
        result.model.predict(people(5, 1), group="sex")


def test_an_answer_is_saved_with_its_thresholds(federation: ffalm.Federation, tmp_path: Path) -> None:
    answer = ffalm.fair(federation, "dpd <= 0.02", algorithms=["fedavg"], rounds=3, lr=0.5)
    frame = people(80, 1)
    loaded = ffalm.load_model(answer.save(tmp_path / "fair"))
    names = np.array(loaded.labels)[answer.decide(frame, frame["sex"]).numpy()]
    numbers = [federation.task.group_names.index(sex) for sex in frame["sex"]]
    for group in ("sex", frame["sex"].tolist(), numbers):
        assert loaded.predict(frame, group=group).tolist() == names.tolist()
        assert answer.predict(frame, group).tolist() == names.tolist()
    assert loaded.facts is not None and loaded.facts.verdict == answer.verdict


@pytest.fixture(scope="module")
def crossed() -> ffalm.FairAnswer:
    """Thresholds by group of the crossing of two columns."""
    frame = people(800).assign(race=np.random.default_rng(1).choice(["Black", "White"], 800))
    federation = ffalm.load(frame, label="paid", group="race,sex", favourable="yes", clients=2)
    answer = ffalm.fair(federation, "dpd <= 0.02", algorithms=["fedavg"], rounds=3, lr=0.5)
    assert answer.model.by_group
    return answer


def test_crossed_columns_may_come_in_any_order(crossed: ffalm.FairAnswer) -> None:
    frame = people(200, 1).assign(race=np.random.default_rng(2).choice(["Black", "White"], 200))
    wanted = crossed.model.predict(frame, group="race,sex")
    assert crossed.model.predict(frame, group="sex, race").tolist() == wanted.tolist()
    assert crossed.model.predict(frame).tolist() != wanted.tolist()


def test_groups_of_which_none_is_the_models_are_refused(crossed: ffalm.FairAnswer) -> None:
    frame = people(20, 1).assign(race="Black")
    with pytest.raises(UserError, match=r"The group column 'job' holds 'clerk', .* its groups are 'Black, female'"):
        crossed.model.predict(frame, group="job")
    with pytest.raises(UserError, match="The groups are 'x', of which none is a group of this model"):
        crossed.model.predict(frame, group=["x"] * 20)
    single = crossed.model.predict(frame).tolist()
    assert crossed.model.predict(frame, group=[None] * 20).tolist() == single
    some = crossed.model.predict(frame, group=["x"] * 10 + ["Black, male"] * 10).tolist()
    assert some[:10] == single[:10]


def test_damaged_files_are_told(result: ffalm.Result, tmp_path: Path) -> None:
    place = result.save(tmp_path / "model")
    (place / "checksums.json").unlink()  # as of earlier versions
    (place / "facts.json").write_text("{}")
    with pytest.raises(UserError, match=r"facts.*cannot be read"):
        ffalm.load_model(place)
    (place / "encoding.json").write_text("[]")
    with pytest.raises(UserError, match=r"encoding.json cannot be read"):
        ffalm.load_model(place)
    with pytest.raises(UserError, match="no folder"):
        ffalm.load_model(tmp_path / "none")
    with pytest.raises(UserError, match="name a folder"):
        result.save(place / "facts.json")


@pytest.mark.parametrize("name", ["model.safetensors", "encoding.json", "facts.json"])
def test_a_flipped_byte_of_a_saved_model_is_noticed(result: ffalm.Result, tmp_path: Path, name: str) -> None:
    folder = result.save(tmp_path / "saved")
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match="missing or damaged"):
        ffalm.load_model(folder)


def test_a_group_column_that_a_data_frame_holds_twice_is_one_sentence(crossed: ffalm.FairAnswer) -> None:
    frame = people(20, 1).assign(race="Black", who="Black, male")
    twice = pd.concat([frame, frame[["who"]] + "x"], axis=1)
    with pytest.raises(UserError, match="more than one column named 'who'"):
        crossed.model.predict(twice, group="who")


def answer_of_frames() -> ffalm.FairAnswer:
    """Thresholds by group of a model whose features were given as data frames."""
    frame = people(800)
    numbers = pd.DataFrame({"income": frame["income"] / 10 - 3, "cook": (frame["job"] == "cook").astype(float)})
    parts = [(numbers[own], frame["paid"][own], frame["sex"][own]) for own in (slice(300), slice(300, 550), slice(550))]
    federation = ffalm.Federation.from_arrays(clients=parts[:1], validation=parts[1], test=parts[2], favourable="yes")
    answer = ffalm.fair(federation, "dpd <= 0.02", algorithms=["fedavg"], rounds=3, lr=0.5)
    assert answer.model.by_group
    return answer


def test_of_a_data_frame_a_model_of_arrays_takes_the_features_that_it_knows() -> None:
    """A file could not hold the group that thresholds need, nor an id."""
    answer = answer_of_frames()
    sex, rows = people(30, 1)["sex"], pd.DataFrame({"income": np.linspace(-1, 1, 30), "cook": 0.0})
    wanted = answer.predict(rows, sex).tolist()
    more = rows[["cook", "income"]].assign(sex=sex, id="p1")
    assert answer.predict(more, "sex").tolist() == wanted
    with pytest.raises(UserError, match="have the columns income, sex, id, and should have income, cook"):
        answer.predict(more[["income", "sex", "id"]])
    with pytest.raises(UserError, match="have the columns cook, income, income, and should have income, cook"):
        answer.predict(more[["cook", "income", "income"]])
