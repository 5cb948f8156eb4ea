"""The graphed engine gives the loop engine's numbers on a GPU, with BatchNorm and exact last batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.test_conformance import jobs_of
from torch import nn

import ffalm
from ffalm.engines.graphed import GraphedEngine
from ffalm.engines.graphed.graphed_clients import GraphedClients
from ffalm.engines.server import ServerContext
from ffalm.errors import UserError
from ffalm.models import CNN, ResNet18

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: the graphed engine needs one")

VARIANTS = {
    **{name: cls() for name, cls in ffalm.algorithms().items() if GraphedEngine.lacks(cls()) is None},
    "last batch": ffalm.FFALM(dual_data="last_batch", penalty_growth=1.1),
    "epoch": ffalm.FFALM(dual_data="epoch_mean", dual_bound=0.05),
    "local weights": ffalm.Reweighing("local"),
}


def federation(sizes: tuple[int, ...] = (40, 23, 16), pixels: int = 32) -> ffalm.Federation:
    """Noise images whose brightness tells the label; the last client lacks a group."""
    draws = np.random.default_rng(0)

    def part(rows: int, one_group: bool = False) -> tuple[np.ndarray, ...]:
        y = draws.integers(0, 2, rows)
        group = np.zeros(rows, int) if one_group else draws.integers(0, 2, rows)
        x = (
            draws.integers(0, 150, (rows, 3, pixels, pixels))
            + 60 * y[:, None, None, None]
            + 30 * group[:, None, None, None]
        )
        return x.astype(np.uint8), y, group

    clients = [part(rows, one_group=index == len(sizes) - 1) for index, rows in enumerate(sizes)]
    return ffalm.Federation.from_arrays(clients, validation=part(50), test=part(1500))


def double(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: build().double()


def both(algorithm: ffalm.Algorithm, model: Callable[[], nn.Module], **settings: object) -> tuple[ffalm.Result, ...]:
    common: dict[str, Any] = {"rounds": 4, "batch_size": 8, "device": "cuda", "model": model, **settings}
    return tuple(ffalm.simulate(algorithm, federation(), engine=engine, **common) for engine in ("loop", "graphed"))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "adam", "lr": 0.01}, {"momentum": 0.9, "weight_decay": 0.01}],
    ids=["adam", "momentum and decay"],
)
@pytest.mark.parametrize("name", ["ffalm", "scaffold", "fedprox"])
def test_client_optimizers_equal_the_loops(name: str, settings: dict[str, Any]) -> None:
    model = double(lambda: CNN((4,)).build((3, 32, 32), 2))
    reference, found = both(VARIANTS[name], model, participation=0.7, **settings)
    for entry, value in reference.state_dict.items():
        torch.testing.assert_close(found.state_dict[entry], value, rtol=1e-9, atol=1e-9)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
def test_in_float64_it_equals_the_loop(name: str) -> None:
    model = double(lambda: ResNet18().build((3, 32, 32), 2))
    reference, found = both(VARIANTS[name], model, participation=0.7)
    for entry, value in reference.state_dict.items():
        torch.testing.assert_close(found.state_dict[entry], value, rtol=1e-9, atol=1e-9)
    for entry, value in reference.state.items():
        torch.testing.assert_close(found.state[entry], value, rtol=1e-9, atol=1e-9)
    for before, after in zip(reference.history, found.history, strict=True):
        assert {key: before[key] for key in ("accuracy", "dpd", "eod")} == pytest.approx(
            {key: after[key] for key in ("accuracy", "dpd", "eod")}, nan_ok=True
        )
        assert before["negative_weight_share"] == pytest.approx(after["negative_weight_share"])
    assert found.test == pytest.approx(reference.test, rel=1e-9, nan_ok=True)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_in_lower_precision_it_stays_near_the_loop(precision: str) -> None:
    reference, found = both(
        ffalm.FFALM(), lambda: CNN().build((3, 32, 32), 2), precision=precision, channels_last=True, rounds=3
    )
    for entry, value in reference.state_dict.items():
        torch.testing.assert_close(
            found.state_dict[entry], value, rtol=1e-2, atol=1e-3 if precision == "fp32" else 2e-2
        )


@needs_gpu
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
def test_compiled_it_stays_near_the_loop() -> None:
    model = double(lambda: CNN().build((3, 32, 32), 2))
    reference, found = both(ffalm.FFALM(), model, compiled=True)
    for entry, value in reference.state_dict.items():
        torch.testing.assert_close(found.state_dict[entry], value, rtol=1e-6, atol=1e-8)


@needs_gpu
@pytest.mark.gpu
def test_programs_are_reused_without_mixing_up_seeds() -> None:
    settings: dict[str, Any] = {"rounds": 3, "batch_size": 8, "device": "cuda", "model": CNN(), "engine": "graphed"}
    together = ffalm.simulate(ffalm.FPFL(), federation(), seed=[0, 1], **settings)
    for seed in (0, 1):
        alone = ffalm.simulate(ffalm.FPFL(), federation(), seed=seed, **settings)
        assert all(torch.equal(together[seed].state_dict[name], value) for name, value in alone.state_dict.items())


@needs_gpu
@pytest.mark.gpu
def test_the_same_run_twice_is_equal_bit_for_bit() -> None:
    first, second = (
        ffalm.simulate(ffalm.FFALM(), federation(), rounds=3, batch_size=8, model=ResNet18(), engine="graphed")
        for _ in range(2)
    )
    assert all(torch.equal(second.state_dict[name], value) for name, value in first.state_dict.items())


def test_without_a_gpu_it_says_what_to_do() -> None:
    with pytest.raises(UserError, match="needs a GPU"):
        ffalm.simulate(ffalm.FedAvg(), federation(), model="cnn", engine="graphed", device="cpu", rounds=1)


def test_each_client_is_given_its_own_state_with_what_it_was_sent() -> None:
    (job,) = jobs_of(ffalm.Reweighing("local"), seeds=1)
    clients: Any = GraphedClients(job, pool=None)  # type: ignore[arg-type]
    sent = ServerContext.of(job).begin(clients.begin())
    received = clients._received([0, 2], sent)
    for client in (0, 2):
        expected = job.spec.algorithm.own_state(job.federation.task, job.federation.counts()[client])
        torch.testing.assert_close(received[client].state, expected)
    assert not torch.equal(received[0].state["row_weights"], received[2].state["row_weights"])
