"""The algorithms of `docs/howto/own-algorithm.md` compute what their papers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tests.docs.blocks import ROOT, blocks_of
from torch import Tensor
from torch.nn.functional import cross_entropy

import ffalm
from ffalm.plugins import import_plugin

PAGE = ROOT / "docs" / "howto" / "own-algorithm.md"
SIZES, ROUNDS, STEPS, LR, ALPHA = (20, 35), 4, 2, 0.1, 0.1


def test_feddyn_is_that_of_the_paper(tmp_path: Path) -> None:
    """g_i <- g_i - a (w_i - w); h <- h - a mean(w_i - w); w <- mean(w_i) - h / a, for clients that all take part."""
    (code,) = (block.code for block in blocks_of(PAGE) if block.title == "feddyn.py")
    (tmp_path / "feddyn.py").write_text(code)
    import_plugin(tmp_path / "feddyn.py")
    draws = np.random.default_rng(0)
    clients = []
    for size in SIZES:
        x = draws.normal(size=(size, 3))
        clients.append((x, (x[:, 0] > 0).astype(int), np.arange(size) % 2))
    fed = ffalm.Federation.from_arrays(clients)
    algorithm, names = ffalm.algorithms()["feddyn"](), ("0.weight", "0.bias")

    def trained(engine: str, rounds: int, lr: float) -> list[Tensor]:
        found = ffalm.simulate(
            algorithm, fed, engine=engine, rounds=rounds, lr=lr, model="linear", clip=None, batch_size=None,
            local_epochs=STEPS, device="cpu",
        )  # fmt: skip
        return [found.state_dict[name] for name in names]

    expected = by_hand(trained("loop", 1, 1e-30), fed)
    for engine in ("loop", "stacked"):
        torch.testing.assert_close(trained(engine, ROUNDS, LR), expected, rtol=1e-4, atol=1e-5)


def by_hand(start: list[Tensor], fed: ffalm.Federation) -> list[Tensor]:
    """The paper's formulas, parameter by parameter."""
    model, shift = start, [torch.zeros_like(one) for one in start]
    slopes = [[torch.zeros_like(one) for one in start] for _ in fed.clients]
    for _ in range(ROUNDS):
        trained = []
        for client, own in zip(fed.clients, slopes, strict=True):
            weights = model
            for _ in range(STEPS):
                free = [one.clone().requires_grad_() for one in weights]
                found = torch.autograd.grad(cross_entropy(client.x.float() @ free[0].T + free[1], client.y), free)
                weights = [
                    w - LR * (g + ALPHA * (w - m) - s) for w, g, m, s in zip(weights, found, model, own, strict=True)
                ]
            own[:] = [s - ALPHA * (w - m) for s, w, m in zip(own, weights, model, strict=True)]
            trained.append(weights)
        mean = [torch.stack(both).mean(0) for both in zip(*trained, strict=True)]
        shift = [h - ALPHA * (average - m) for h, average, m in zip(shift, mean, model, strict=True)]
        model = [average - h / ALPHA for average, h in zip(mean, shift, strict=True)]
    return model
