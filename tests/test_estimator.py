"""`FairFederatedClassifier` as scikit-learn's tools and people use it."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import ffalm
from ffalm import estimator
from ffalm.errors import UserError
from ffalm.estimator import FairFederatedClassifier

QUICK: dict[str, Any] = {"rounds": 5, "model": "linear", "lr": 0.5, "random_state": 0}


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    """Two groups of which one is approved more often, and features that tell both."""
    draws = np.random.default_rng(0)
    sex = np.where(draws.random(600) < 0.5, "female", "male")
    merit = draws.normal(size=600)
    approved = np.where(merit + 0.8 * (sex == "male") + draws.normal(scale=0.5, size=600) > 0.4, "yes", "no")
    return pd.DataFrame(
        {"merit": 1000 * merit, "height": 170 + 10 * (sex == "male") + draws.normal(size=600), "sex": sex,
         "bank": draws.choice(["a", "b", "c"], 600), "approved": approved}
    )  # fmt: skip


def features(people: pd.DataFrame) -> pd.DataFrame:
    return people[["merit", "height"]]


@pytest.mark.slow  # ten seconds
def test_all_estimator_checks_of_scikit_learn_pass() -> None:
    results = estimator_checks.check_estimator(FairFederatedClassifier(), on_fail=None, on_skip=None)
    assert {(one["check_name"], str(one["exception"])) for one in results if one["status"] == "failed"} == set()
    assert {one["check_name"] for one in results if one["status"] == "skipped"} <= {"check_array_api_input"}


@pytest.mark.parametrize(
    "name",
    [
        "check_parameters_default_constructible",
        "check_no_attributes_set_in_init",
        "check_estimators_nan_inf",
        "check_methods_subset_invariance",
        "check_n_features_in",
        "check_classifiers_one_label",
        "check_fit2d_1sample",
        "check_estimators_pickle",
        "check_dict_unchanged",
    ],
)
def test_quick_estimator_checks_pass(name: str) -> None:
    getattr(estimator_checks, name)("FairFederatedClassifier", FairFederatedClassifier(rounds=2))


def test_groups_in_a_list_of_tensors_are_compared_by_value(people: pd.DataFrame) -> None:
    numbers = (people["sex"] == "male").astype(int).tolist()
    x, y = features(people), people["approved"]
    plain = FairFederatedClassifier(**QUICK).fit(x, y, groups=numbers)
    tensors = [torch.tensor(one) for one in numbers]
    same = FairFederatedClassifier(**QUICK).fit(x, y, groups=tensors)
    assert np.array_equal(plain.predict_proba(x), same.predict_proba(x))
    assert np.array_equal(plain.predict(x, groups=numbers), same.predict(x, groups=tensors))


def test_string_labels_frames_and_clients_are_taken_as_they_are(people: pd.DataFrame) -> None:
    model: Any = FairFederatedClassifier(**QUICK).fit(
        features(people), people["approved"], groups=people["sex"], clients=people["bank"]
    )
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.groups_.tolist() == ["female", "male"]
    assert (model.n_features_in_, list(model.feature_names_in_)) == (2, ["merit", "height"])
    assert model.score(features(people), people["approved"]) > 0.8
    assert model.predict_proba(features(people)).sum(1) == pytest.approx(1)
    assert len(model.result_.clients) == 3


def test_without_groups_fedavg_is_trained_on_equal_random_parts(people: pd.DataFrame) -> None:
    x, y = features(people), people["approved"]
    model: Any = FairFederatedClassifier(n_clients=4, **QUICK).fit(x, y)
    assert len(model.result_.clients) == 4
    assert (model.groups_, model.result_.state.get("dual")) == (None, None)
    again = clone(model).fit(x, y)
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


def test_without_groups_only_methods_that_look_at_none_are_trained(people: pd.DataFrame) -> None:
    """Nobody is put into a group that was made up: all rows are of one."""
    x, y = features(people), people["approved"]
    plain = FairFederatedClassifier("fedavg", **QUICK).fit(x, y)
    assert plain.result_ is not None
    assert all(np.isnan(one["dpd"]) for one in plain.result_.clients)
    FairFederatedClassifier("afl", **QUICK).fit(x, y)
    for name in ("reweighing", "lagrangian", "fcfl", "fairfed"):
        with pytest.raises(UserError, match=f"'{name}' compares groups"):
            FairFederatedClassifier(name, **QUICK).fit(x, y)


def test_numbers_of_clients_may_come_from_numpy_as_searches_give_them(people: pd.DataFrame) -> None:
    model = FairFederatedClassifier(n_clients=cast(int, np.int64(3)), **QUICK).fit(features(people), people["approved"])
    assert model.result_ is not None and len(model.result_.clients) == 3


def test_groups_and_seeds_of_another_shape_are_told(people: pd.DataFrame) -> None:
    x, y = features(people), people["approved"]
    model = FairFederatedClassifier(target="dpd <= 0.2", **QUICK).fit(x, y, groups=people["sex"])
    with pytest.raises(UserError, match=r"one value of `groups` per row; got \(600, 1\) for 600 rows"):
        model.predict(x, groups=people[["sex"]])
    with pytest.raises(UserError, match="`random_state` must be a whole number from 0 up; got -1"):
        FairFederatedClassifier(rounds=1, random_state=-1).fit(x, y)


def test_a_method_that_gives_no_single_model_is_refused(people: pd.DataFrame) -> None:
    with pytest.raises(UserError, match="'local' trains a model for each client"):
        FairFederatedClassifier("local", **QUICK).fit(features(people), people["approved"])


def test_a_target_gives_thresholds_by_group(people: pd.DataFrame) -> None:
    x, y, sex = features(people), people["approved"], people["sex"]
    model: Any = FairFederatedClassifier("fedavg", target="dpd <= 0.1", **QUICK).fit(x, y, groups=sex)
    assert isinstance(model.answer_, ffalm.FairAnswer)
    assert model.repair_.kind == "groups"

    def gap(predicted: Any) -> float:
        return ffalm.metrics.tally(y == "yes", predicted == "yes", sex == "male").dpd()

    fair = model.predict(x, groups=sex)
    assert gap(fair) < 0.15 < gap(model.predict(x))
    some = np.where(np.arange(len(x)) < 5, "?", sex)
    assert np.array_equal(model.predict(x, groups=some)[:5], model.predict(x)[:5])
    assert np.array_equal(model.predict(x, groups=[None] * len(x)), model.predict(x))
    with pytest.raises(ValueError, match="None of the `groups` was given to `fit`, which had 'female', 'male'"):
        model.predict(x, groups=["?"] * len(x))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x, groups=sex), fair)


def test_without_a_rate_a_target_has_it_chosen_on_held_out_rows(people: pd.DataFrame) -> None:
    settings = {**QUICK, "lr": None}
    aimed = FairFederatedClassifier("fedavg", target="dpd <= 0.1", **settings)
    aimed.fit(features(people), people["approved"], groups=people["sex"])
    assert aimed.answer_ is not None
    assert any("The learning rate" in note for note in aimed.answer_.notes)
    usual, stated = (
        FairFederatedClassifier("fedavg", **{**QUICK, "lr": rate}).fit(features(people), people["approved"])
        for rate in (None, 0.05)
    )
    assert np.array_equal(usual.predict_proba(features(people)), stated.predict_proba(features(people)))


def test_rows_of_a_missing_group_train_and_are_not_compared(people: pd.DataFrame) -> None:
    sex = people["sex"].where(people.index % 5 > 0)
    model: Any = FairFederatedClassifier(**QUICK).fit(features(people), people["approved"], groups=sex)
    assert model.groups_.tolist() == ["female", "male"]


def test_masked_groups_are_missing(people: pd.DataFrame) -> None:
    """The values below the mask were taken for groups."""
    hidden = np.arange(600) < 150
    masked = np.ma.masked_array(people["sex"].to_numpy(dtype=object), mask=hidden)
    blank = people["sex"].where(~hidden, None)
    models = [
        FairFederatedClassifier(algorithm="fedavg", target="dpd <= 0.02", **QUICK).fit(
            features(people), people["approved"], groups=groups
        )
        for groups in (masked, blank)
    ]
    one, other = (model.answer_ for model in models)
    assert one is not None and other is not None and one.test == other.test
    assert one.model.task.group_names == ("female", "male", "unknown")
    assert models[0].repair_ is not None and models[0].repair_.by_group
    predicted = [models[0].predict(features(people), groups=groups) for groups in (masked, blank, people["sex"])]
    assert (predicted[0] == predicted[1]).all() and (predicted[0] != predicted[2]).any()


def test_a_group_called_unknown_keeps_its_threshold_where_other_groups_are_missing(people: pd.DataFrame) -> None:
    x, y = features(people), people["approved"]
    sex = people["sex"].where(people.index % 5 > 0)
    renamed = sex.replace({"male": "unknown"})
    quick: dict[str, Any] = {**QUICK, "target": "dpd <= 0.1", "rounds": 1}
    models: list[Any] = [FairFederatedClassifier("fedavg", **quick).fit(x, y, groups=own) for own in (sex, renamed)]
    assert [len(model.repair_.edges) for model in models] == [3, 3]
    assert np.array_equal(models[0].predict(x, groups=sex), models[1].predict(x, groups=renamed))


def test_it_works_in_pipelines_and_cross_validation_with_routed_groups(people: pd.DataFrame) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = (
            FairFederatedClassifier("fairfed", **QUICK).set_fit_request(groups=True).set_predict_request(groups=False)
        )
        scores = cross_val_score(
            make_pipeline(StandardScaler(), model), features(people), people["approved"], cv=2,
            params={"groups": people["sex"]}, error_score="raise",
        )  # fmt: skip
    assert scores.min() > 0.7


def test_a_search_scores_the_thresholds_of_groups_if_groups_are_routed_to_score(people: pd.DataFrame) -> None:
    x, y, sex = features(people), people["approved"], people["sex"]
    early = people.index < len(people) // 2
    settings: dict[str, Any] = {**QUICK, "target": "dpd <= 0.1", "rounds": 10}
    alone = FairFederatedClassifier("fedavg", **settings).fit(x[early], y[early], groups=sex[early])
    shares = [np.mean(alone.predict(x[~early], groups) == y[~early]) for groups in (sex[~early], None)]
    assert shares[0] != shares[1]

    rows = PredefinedSplit(np.where(early, -1, 0))
    with sklearn.config_context(enable_metadata_routing=True):
        for requested, share in zip((True, False), shares, strict=True):
            model = clone(alone).set_fit_request(groups=True).set_score_request(groups=requested)
            search = GridSearchCV(model, {"rounds": [10]}, cv=rows, refit=False).fit(x, y, groups=sex)
            assert search.cv_results_["mean_test_score"][0] == share


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"target": "dpd <= 0.1"}, {}, "compares groups"),
        ({"algorithm": "ffalm"}, {}, "'ffalm' compares groups"),
        ({"algorithm": "lagrangian"}, {}, "compares groups"),
        ({"n_clients": 1000}, {}, "`n_clients` must be from 1 to the number of rows, 600"),
        ({"favourable": "maybe"}, {}, "'maybe' is not one of the classes"),
        ({"favourable": pd.NA}, {}, "<NA> is not one of the classes"),
        ({}, {"groups": ["a"]}, "one value of `groups` per row"),
        ({}, {"groups": ["a"] * 600}, "at least 2 different `groups`"),
        ({}, {"clients": ["a", *[None] * 599]}, "no client"),
        ({"target": "dpd <= 0.1", "validation_fraction": 2}, {"groups": ["a", "b"] * 300}, "`validation_fraction`"),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_sentence(
    people: pd.DataFrame, settings: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        FairFederatedClassifier(**{**QUICK, **settings}).fit(features(people), people["approved"], **given)
    assert isinstance(refused.value, ValueError)


def test_without_scikit_learn_the_class_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    spec = importlib.util.spec_from_file_location("estimator_alone", estimator.__file__)
    assert spec is not None and spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    with pytest.raises(UserError, match=r"pip install 'ffalm\[sklearn\]'"):
        alone.FairFederatedClassifier()


def test_tensors_of_any_kind_are_taken_or_told() -> None:
    x, y = torch.randn(20, 3, requires_grad=True), torch.arange(20) % 2
    model = FairFederatedClassifier(model="linear", rounds=1, random_state=0)
    assert model.fit(x, y, groups=y).predict(x.bfloat16()).shape == (20,)
    for strange in ({"X": x.to_sparse()}, {"X": np.where(np.arange(60).reshape(20, 3) % 2, 1e308, -1e308)}):
        with pytest.raises(ValueError):  # noqa: PT011
            model.fit(**{"X": x, "y": y, **strange})
    with pytest.raises(ValueError, match="can be sorted"):
        model.fit(x, y, groups=[1j, 2j] * 10)
