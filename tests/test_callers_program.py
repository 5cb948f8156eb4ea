"""The library inside a bigger program: what the program has set in torch changes no number, and stays as it was."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from tests.test_simulate import FAST, arrays, federation
from torch import nn

import ffalm
from ffalm.models.tracing import graph_of

FIT: dict[str, Any] = {"rounds": 1, "model": "linear", "lr": 0.5, "random_state": 0}


def trained(engine: str, model: Any = "mlp", seed: int = 0) -> ffalm.Result:
    return ffalm.simulate("ffalm", federation(), seed=seed, **{**FAST, "engine": engine, "model": model, "rounds": 3})


def same(first: ffalm.Result, second: ffalm.Result) -> bool:
    return all(torch.equal(value, second.state_dict[name]) for name, value in first.state_dict.items())


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


MODES: list[Callable[[], AbstractContextManager[Any]]] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.device("meta"),  # stands for "cuda", which is not everywhere
]


@pytest.mark.parametrize("mode", MODES, ids=["no_grad", "inference_mode", "autocast", "default device"])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_modes_of_the_caller_change_no_number(mode: Callable[[], Any], engine: str) -> None:
    usual = trained(engine)
    with mode():
        assert same(trained(engine), usual)


def test_data_studies_answers_and_models_do_not_depend_on_the_default_device() -> None:
    x, y, group = arrays(91, 40)
    with torch.device("meta"):
        fed = federation()
        assert len(ffalm.load("census", clients=2, seed=0).clients) == 2
        study = ffalm.compare(fed, ["fedavg"], seeds=1, rounds=1, model="linear", target=None)
        study.blind(study.results[0], "dpd <= 0.9", federation=fed)
        answer = ffalm.fair(fed, "dpd <= 0.9", algorithms=["fedavg"], rounds=1, lr=0.5, model="linear")
        assert len(answer.predict(x, group)) == 40
        assert ffalm.metrics.tally(y, y, group).accuracy() == 1
        assert len(ffalm.FairFederatedClassifier(**FIT).fit(x, y, groups=group).predict(x)) == 40


@pytest.mark.parametrize(("engine", "model"), [("loop", with_dropout), ("stacked", "mlp")])
def test_threads_give_the_numbers_of_one_after_the_other(engine: str, model: Any) -> None:
    """Torch has one generator, one number of threads and one tracer for all of them."""
    alone = [trained(engine, model, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: trained(engine, model, seed), range(4)))
    assert all(map(same, alone, together))


def as_onnx(module: nn.Module) -> object:
    onnx_layers = pytest.importorskip("ffalm.models.onnx_layers", exc_type=ImportError)
    return onnx_layers.add_network(onnx_layers.Graph(), module, "x")


@pytest.mark.parametrize("read", [graph_of, as_onnx])
def test_a_model_of_another_thread_computes_while_one_is_traced(read: Callable[[nn.Module], object]) -> None:
    other, inside, done = nn.Linear(2, 2), threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x: Any) -> Any:
            inside.set()
            assert done.wait(10)
            return torch.relu(x)

    with ThreadPoolExecutor(1) as pool:
        traced = pool.submit(read, Slow())
        assert inside.wait(10)
        try:
            assert other(torch.zeros(1, 2)).shape == (1, 2)
        finally:
            done.set()
        assert traced.result() is not None


def test_global_generators_stay_as_they_were() -> None:
    def states() -> tuple[Any, ...]:
        numpy_state: Any = np.random.get_state()
        return random.getstate(), numpy_state[1].tobytes(), torch.get_rng_state().tolist()

    x, y, _ = arrays(91, 40)
    before = states()
    trained("loop", with_dropout).predict(x)
    ffalm.FairFederatedClassifier(**FIT).fit(x, y).predict(x)
    assert states() == before
