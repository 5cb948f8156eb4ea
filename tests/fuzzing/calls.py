"""Random calls of the Python interface: arguments of every type that an array, a number or a name might come in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tests.fuzzing.outcomes import Outcome, outcome_of_call
from tests.fuzzing.values import thing

import ffalm

_ROWS = 12
_NUMPY = (
    "?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "g", "F", "D", "S3", "U3", "O", "M8[s]", "m8[s]", "V4",
)  # fmt: skip
_TORCH = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool", "complex64",
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "chalf",
)  # fmt: skip
_FRAME = pd.DataFrame(
    {
        "a": np.arange(200) % 7,
        "sex": ["m", "f"] * 100,
        "paid": [i % 3 % 2 for i in range(200)],
        "shop": ["x", "y"] * 100,
    }
)


class _Computed:
    """Stands for a study."""


def array(draws: random.Random, matrix: bool = False) -> Any:
    """Whole numbers 0 and 1, or features, in a container of a random type; some are no good."""
    shape = (_ROWS, 3) if matrix else (_ROWS,)
    plain = np.arange(np.prod(shape)).reshape(shape) % 2
    kinds: list[Callable[[], Any]] = [
        lambda: plain,
        plain.tolist,
        lambda: plain.astype(draws.choice(_NUMPY)),
        lambda: torch.tensor(plain).to(getattr(torch, draws.choice(_TORCH))),
        lambda: torch.tensor(plain).float().to_sparse(),
        lambda: torch.tensor(plain).float().to_sparse_csr() if matrix else torch.tensor(plain).to("meta"),
        lambda: torch.quantize_per_tensor(torch.tensor(plain).float(), 1.0, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.zeros(shape, device="meta"),
        lambda: torch.zeros(shape, requires_grad=True),
        lambda: torch.tensor(plain).float().conj_physical().neg(),
        lambda: np.ma.masked_array(plain, mask=plain > 0),
        lambda: np.ma.masked_array(plain),
        lambda: pd.DataFrame(plain) if matrix else pd.Series(plain),
        lambda: pd.DataFrame(plain, dtype="Int64") if matrix else pd.Series(plain, dtype="Int64"),
        lambda: pd.DataFrame(plain).astype("category") if matrix else pd.Series(plain).astype("category"),
        lambda: pd.array([0, None] * (_ROWS // 2), dtype="Int64"),
        lambda: plain.astype(str),
        lambda: ["a", "b"] * (_ROWS // 2),
        lambda: plain * 1.5,
        lambda: plain - 1,
        lambda: plain * 2**62,
        lambda: np.full(shape, draws.choice([np.nan, np.inf, 1e308, -0.0])),
        lambda: plain[:0],
        lambda: plain[:5],
        lambda: plain[..., None],
        lambda: plain[::-1],
        lambda: np.broadcast_to(np.uint8(1), shape),
        lambda: plain.T,
        lambda: [[1], [1, 2]],
        lambda: [None] * _ROWS,
        lambda: [10**30] * _ROWS,
        lambda: (i % 2 for i in range(_ROWS)),
        lambda: memoryview(plain.astype("u1").copy().tobytes()),
        lambda: thing(draws),
    ]
    return draws.choice(kinds)() if draws.random() < 0.6 else plain.astype(float if matrix else int)


def _part(draws: random.Random) -> Any:
    if draws.random() < 0.05:
        return thing(draws)
    return array(draws, True), array(draws), array(draws)


def some_of(draws: random.Random, names: tuple[str, ...], chance: float = 0.15) -> dict[str, Any]:
    """Hostile values for some of these keywords."""
    return {name: thing(draws) for name in names if draws.random() < chance}


def _from_arrays(draws: random.Random) -> Callable[[], object]:
    clients: Any = [_part(draws) for _ in range(draws.choice((1, 1, 2)))]
    clients = thing(draws) if draws.random() < 0.05 else clients
    keywords = {"validation": _part(draws), "test": _part(draws)} if draws.random() < 0.5 else {}
    keywords |= some_of(draws, ("favourable", "name", "validation", "test"))
    return lambda: repr(ffalm.Federation.from_arrays(clients, **keywords).summary())


def _tally(draws: random.Random) -> Callable[[], object]:
    given = [array(draws) for _ in range(3)]
    losses = {"losses": array(draws)} if draws.random() < 0.4 else {}
    favourable = {"favourable": thing(draws)} if draws.random() < 0.3 else {}
    metric = draws.choice(["dpd", "accuracy", "eod", thing(draws)])
    level = draws.choice([0.95, 0.9, thing(draws)])

    def call() -> object:
        counted = ffalm.metrics.tally(*given, **losses)
        return counted.metrics(**favourable), counted.interval(metric, level, **favourable), counted.dpd(**favourable)

    return call


def _load(draws: random.Random, here: Path) -> Callable[[], object]:
    table = here / "good.csv"
    name = draws.choice(
        ["census", table, str(table), _FRAME, _FRAME, thing(draws), here / "noise.csv", here / "folder"]
    )
    of_table = {"label": "paid", "group": "sex", "favourable": 1}
    settings: dict[str, Any] = {"rows": 300} if isinstance(name, str) and name == "census" else of_table
    extra = ("clients", "alpha", "partition", "min_rows", "seed", "label", "group", "favourable", "owner", "drop", "x")
    settings = {"clients": 2, **settings, **some_of(draws, extra, 0.1)}
    return lambda: repr(ffalm.load(name, **settings))


def _simulate(draws: random.Random, federation: ffalm.Federation) -> Callable[[], object]:
    algorithm = draws.choice(["fedavg", "ffalm", ffalm.FFALM(), thing(draws), ffalm.FFALM, "fairfed"])
    data = draws.choice([federation] * 5 + [[federation], thing(draws)])
    names = ("rounds", "lr", "batch_size", "clip", "participation", "optimizer", "momentum", "weight_decay", "model",
             "privacy", "keep", "engine", "device", "precision", "channels_last", "compiled", "seed", "threads",
             "local_steps", "lr_step", "lr_decay", "on_round", "progress", "x")  # fmt: skip
    settings = {"rounds": 1, **some_of(draws, names, 0.06)}
    return lambda: ffalm.simulate(algorithm, data, **settings)


def _compare(draws: random.Random, federation: ffalm.Federation) -> Callable[[], object]:
    from unittest.mock import patch

    data = draws.choice(["census", federation, [federation], thing(draws)])
    names = ("algorithms", "seeds", "partition", "clients", "alpha", "min_rows", "label", "favourable", "owner", "x",
             "data_settings", "fresh_data", "workers", "checkpoint_every", "resume", "rounds", "model",
             "progress")  # fmt: skip
    settings = {"algorithms": "fedavg", "seeds": 1, "rounds": 1, **some_of(draws, names, 0.08)}
    if isinstance(data, str) and data == "census":
        settings = {"data_settings": {"rows": 300}, **settings}

    def call() -> object:
        with patch("ffalm.studies.study.OpenStudy.compute", lambda *_: _Computed()):
            return ffalm.compare(data, **settings)

    return call


def _build(draws: random.Random) -> Callable[[], object]:
    """An algorithm or settings object with hostile values."""
    cls: Any = draws.choice([*ffalm.algorithms().values(), ffalm.Privacy])
    values = some_of(draws, tuple(one.name for one in fields(cls)), 0.3)
    values = {"noise": 1.0, **values} if cls is ffalm.Privacy else values
    return lambda: cls(**values)


def run(number: int, seed: int, here: Path, federation: ffalm.Federation) -> tuple[Outcome, str]:
    """One case by its number."""
    from tests.fuzzing import model_calls as models
    from tests.fuzzing import same_values

    draws = random.Random(f"{seed}-{number}")
    surfaces: dict[str, Callable[[], Callable[[], object]]] = {
        "from_arrays": lambda: _from_arrays(draws),
        "tally": lambda: _tally(draws),
        "load": lambda: _load(draws, here),
        "simulate": lambda: _simulate(draws, federation),
        "compare": lambda: _compare(draws, federation),
        "build": lambda: _build(draws),
        "audit": lambda: models.audit(draws, here),
        "repair": lambda: models.repair(draws),
        "target": lambda: models.target(draws),
        "fair": lambda: models.fair(draws, federation),
        "load_model": lambda: models.trained(draws, here),
        "classifier": lambda: models.estimator(draws),
        "sweep": lambda: models.sweep(draws, federation),
        "objects": lambda: models.objects(draws, here, federation),
        "same values": lambda: same_values.call(draws, here),
    }
    surface = draws.choice(("from_arrays", "tally", *surfaces))
    return outcome_of_call(surfaces[surface](), surface == "classifier"), surface


def small_federation() -> ffalm.Federation:
    """Something to simulate."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    part = (x, (x[:, 0] > 0).astype(int), np.arange(40) % 2)
    return ffalm.Federation.from_arrays([part, part], part, part)
