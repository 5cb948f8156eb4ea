"""Random calls of what audits, repairs, answers and trained models take: columns, scores, targets, new rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tests.fuzzing.calls import array, some_of
from tests.fuzzing.mutations import changed_value
from tests.fuzzing.values import CONDITIONS, TARGETS, thing

import ffalm

_ROWS = 40


def column(draws: random.Random) -> Any:
    """One column of scores, labels or groups, in any type that a data frame or a list may have."""
    numbers = np.arange(_ROWS)
    kinds: list[Callable[[], Any]] = [
        lambda: numbers % 2,
        lambda: (numbers % 7) / 7,
        lambda: np.where(numbers % 2, "a", "b"),
        lambda: pd.Series(numbers % 2, dtype="boolean"),
        lambda: pd.Series(numbers % 3, dtype="Int8"),
        lambda: pd.Series([None if i % 5 == 0 else i % 2 for i in numbers], dtype="Int64"),
        lambda: pd.Series([None if i % 5 == 0 else "ab"[i % 2] for i in numbers]),
        lambda: pd.Series(numbers / 7, dtype="Float32"),
        lambda: pd.Series(np.where(numbers % 2, "a", "b"), dtype="string"),
        lambda: pd.Series(np.where(numbers % 2, "a", "b"), dtype="category"),
        lambda: pd.Categorical(numbers % 2, categories=[1, 0], ordered=True),
        lambda: pd.Series(numbers % 2, dtype="Sparse[int]"),
        lambda: pd.Series(numbers % 2, dtype="int64[pyarrow]"),
        lambda: pd.Series(np.where(numbers % 2, "a", "b"), dtype="string[pyarrow]"),
        lambda: pd.Series(numbers % 2, index=numbers[::-1]),
        lambda: pd.Series(numbers % 2, index=np.zeros(_ROWS)),
        lambda: pd.Series(pd.date_range("2020", periods=_ROWS)),
        lambda: pd.Series(pd.date_range("2020", periods=_ROWS, tz="UTC")),
        lambda: pd.Series(pd.timedelta_range(0, periods=_ROWS)),
        lambda: pd.interval_range(0, periods=_ROWS),
        lambda: pd.MultiIndex.from_arrays([numbers, numbers]),
        lambda: np.where(numbers == 3, draws.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324]), numbers / 9),
        lambda: np.full(_ROWS, draws.choice([np.nan, 0.0, 1.0, np.inf])),
        lambda: (numbers % 2).astype(complex),
        lambda: (numbers % 2).astype(np.float16),
        lambda: numbers.astype(np.longdouble),
        lambda: torch.arange(_ROWS) % 2,
        lambda: (torch.arange(_ROWS) / 7).requires_grad_() + 1,
        lambda: torch.arange(_ROWS).bfloat16(),
        lambda: (numbers % 2)[:, None],
        lambda: numbers[:7],
        lambda: [],
        lambda: ["a", 1, None, 2.5] * (_ROWS // 4),
        lambda: [[1, 2]] * _ROWS,
        lambda: [b"a", b"b"] * (_ROWS // 2),
        lambda: [10**30, 0] * (_ROWS // 2),
        lambda: list((numbers % 2).astype(str)),
        lambda: (i % 2 for i in range(_ROWS)),
        lambda: {"a": 1},
        lambda: np.ma.masked_array(numbers % 2, mask=numbers == 2),
        lambda: thing(draws),
    ]
    return draws.choice(kinds)()


def frame(draws: random.Random) -> pd.DataFrame:
    """A table of predicted rows with a few odd columns."""
    numbers = np.arange(_ROWS)
    made = pd.DataFrame(
        {"y": numbers % 3 % 2, "p": (numbers % 7) / 7, "sex": np.where(numbers % 2, "m", "f"), "said": numbers % 2}
    )
    for _ in range(draws.choice((0, 1, 1, 2))):
        name = draws.choice(["y", "p", "sex", "said", "age", "", 3, None, ("a", 1), "x\ny"])
        try:
            made[name] = column(draws)
        except Exception:  # no column of a frame
            continue
    if draws.random() < 0.1:
        made = pd.concat([made, made[["sex"]]], axis=1)
    return made


def audit(draws: random.Random, here: Path) -> Callable[[], object]:
    """Of a frame, a file or arrays; the page of it, and conditions."""
    arguments: dict[str, Any] = {
        "label": "y",
        "group": draws.choice(["sex", "sex", ["sex"], ["sex", "said"], "age", []]),
    }
    arguments |= draws.choice([{"prediction": "said"}, {"score": "p"}, {"prediction": "said", "score": "p"}])
    data: Any = draws.choice(
        [frame(draws)] * 6 + [here / "good.csv", here / "noise.csv", here / "folder", thing(draws)]
    )
    if draws.random() < 0.3:
        data = None
        arguments = {name: column(draws) for name in arguments}
    arguments |= some_of(draws, ("favourable", "decision", "min_group", "level", "label", "group", "score"), 0.1)
    condition = draws.choice((*CONDITIONS, thing(draws)))

    def call() -> object:
        found = ffalm.audit(data, **{"min_group": 3, **arguments})
        found.write_html(here / "audit.html")
        return found.to_dict(), repr(found), found.failures([condition])

    return call


def repair(draws: random.Random) -> Callable[[], object]:
    """Thresholds for scores, and predictions by them."""
    numbers = np.arange(_ROWS)
    plain = [(numbers % 7) / 7, numbers % 3 % 2, np.where(numbers % 2, "m", "f")]
    given = [one if draws.random() < 0.6 else column(draws) for one in plain]
    names = ("target", "repair", "confidence", "cost_false_favourable", "cost_false_unfavourable", "favourable",
             "decision", "test")  # fmt: skip
    keywords = {"target": draws.choice(("dpd <= 0.2", *TARGETS)), **some_of(draws, names, 0.1)}
    if draws.random() < 0.3:
        keywords["test"] = [one if draws.random() < 0.7 else column(draws) for one in plain]
    keywords["repair"] = draws.choice(["single", "groups", "randomised", keywords.get("repair", "groups")])
    new = column(draws), column(draws), draws.choice([None, column(draws)])

    def call() -> object:
        found = ffalm.repair(*given, **keywords)
        repr(found)
        return found.predict(*new)

    return call


def target(draws: random.Random) -> Callable[[], object]:
    """A target's text, and what it says of metrics."""
    text = draws.choice((*TARGETS, thing(draws), "".join(draws.choices("dpeo<=>0.1, %\u2264\n", k=9))))

    def call() -> object:
        found = ffalm.Target.parse(text)
        assert ffalm.Target.parse(str(found)) == found
        return found.meets({"dpd": float("nan")})

    return call


def fair(draws: random.Random, federation: ffalm.Federation) -> Callable[[], object]:
    """`fair` and `blind`, which train a round."""
    data = draws.choice([federation] * 5 + [thing(draws)])
    names = ("seed", "algorithms", "repair", "confidence", "lr", "model", "keep", "x")
    keywords = {"rounds": 1, "algorithms": ["fedavg"], **some_of(draws, names, 0.12)}
    bound = draws.choice(("dpd <= 0.3", "dpd <= 0.3", *TARGETS, thing(draws)))
    new, group = array(draws, True), array(draws)

    def call() -> object:
        found = ffalm.fair(data, bound, **keywords)
        return found.explain(), repr(found), found.predict(new, group), found.predict_proba(new)

    return call


@cache
def _trained(here: Path) -> Any:
    """A model of rows, saved in a folder that other cases name."""
    from tests.fuzzing.commands import train

    return ffalm.load_model(train(here))


def trained(draws: random.Random, here: Path) -> Callable[[], object]:
    """New rows for a trained model, and folders that hold none."""
    model = _trained(here)
    if draws.random() < 0.2:
        folder = draws.choice([here / "folder", here / "good.csv", here / "missing", thing(draws)])
        return lambda: ffalm.load_model(folder, **some_of(draws, ("alpha", "site", "model"), 0.4))
    rows = pd.DataFrame({"a": np.arange(_ROWS) % 7, "sex": np.where(np.arange(_ROWS) % 2, "m", "f")})
    for _ in range(draws.choice((0, 1, 2))):
        try:
            rows[draws.choice(["a", "sex", "b", 3])] = column(draws)
        except Exception:
            continue
    rows = rows.drop(columns="a") if draws.random() < 0.05 else rows
    data: Any = draws.choice(
        [rows] * 6 + [rows[:0], here / "good.csv", here / "noise.csv", array(draws, True), thing(draws)]
    )
    group = draws.choice([None, None, "sex", "x", column(draws), thing(draws)])

    def call() -> object:
        chances = model.predict_proba(data)
        labels = model.predict(data, group)
        assert len(labels) == len(chances) and np.isfinite(chances).all(), "chances are no numbers"
        return labels

    return call


def estimator(draws: random.Random) -> Callable[[], object]:
    """The classifier behind scikit-learn's interface."""
    settings = {"rounds": 1, "random_state": 0, "model": "linear"}
    names = ("algorithm", "target", "favourable", "repair", "n_clients", "model", "rounds", "lr", "batch_size",
             "validation_fraction", "standardize", "device", "random_state", "optimizer")  # fmt: skip
    settings |= some_of(draws, names, 0.05)
    x, y, groups, clients = array(draws, True), array(draws), array(draws), array(draws)
    given = {name: value for name, value in (("groups", groups), ("clients", clients)) if draws.random() < 0.5}

    def call() -> object:
        model = ffalm.FairFederatedClassifier(**settings)  # type: ignore[arg-type]
        return model.fit(x, y, **given).predict(x)

    return call


def sweep(draws: random.Random, federation: ffalm.Federation) -> Callable[[], object]:
    """`sweep` and `leave_one_out`, up to the first round."""
    from unittest.mock import patch

    class Computed(Exception):
        """Rounds would begin."""

    over: Any = draws.choice(
        [{"tolerance": [0, 0.1]}, {"x": [1]}, {"tolerance": 3}, {"lagrangian.tolerance": []}, thing(draws)]
    )
    data: Any = draws.choice([federation, "census", thing(draws)])
    keywords = {"rounds": 1, "seeds": 1, **some_of(draws, ("metric", "settings", "algorithms", "out", "x"), 0.15)}
    keywords |= {"data_settings": {"rows": 300}} if isinstance(data, str) and data == "census" else {}

    def compute(*_: object) -> Any:
        raise Computed

    def call() -> object:
        try:
            with patch("ffalm.studies.study.OpenStudy.compute", compute):
                return ffalm.sweep(data, over=over, **keywords)
        except Computed:
            return None

    return call


def objects(draws: random.Random, here: Path, federation: ffalm.Federation) -> Callable[[], object]:
    """Objects that people make or load themselves."""
    from ffalm.studies.sweeps import Sweep

    path: Any = draws.choice([here / "folder", here / "noise.bin", here / "good.csv", here / "missing", thing(draws)])
    plain = {"kind": "groups", "single": 0.5, "groups": {"m": [{"threshold": 0.5, "probability": 1.0}]}}
    calls: list[Callable[[], object]] = [
        lambda: ffalm.Study.load(path),
        lambda: Sweep.load(path),
        lambda: ffalm.ScoreThresholds.load(path),
        lambda: ffalm.ScoreThresholds.from_plain(changed_value(draws, plain)).predict(column(draws)),
        lambda: ffalm.leave_one_out(thing(draws), rounds=1, seeds=1, out=path),
        lambda: ffalm.group_model(thing(draws), rounds=1),
        lambda: ffalm.blind(thing(draws), federation, rounds=1),
        lambda: ffalm.simulate("fedavg", federation, rounds=1).state_dict,
        lambda: _trained(here).save(path),
        lambda: _trained(here).to_onnx(path),
    ]
    return draws.choice(calls)
