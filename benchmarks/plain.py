"""FFALM and FedAvg as a researcher writes them down in an afternoon: the baseline that engines are measured against.

Tensors are indexed in memory (a `DataLoader` would be twice as slow); one client after the other, autograd for
everything. It shares nothing with the library but the federation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ffalm.data.types import Examples
from ffalm.federation import Federation

Batches = Callable[[int, int, int], Sequence[Tensor]]
"""The row numbers of each batch, given the round, the client and the number of its rows."""


def shuffled(number: int, client: int, rows: int) -> Sequence[Tensor]:
    """A fresh order, in batches of 128."""
    return torch.split(torch.randperm(rows), 128)


def train_plainly(
    federation: Federation,
    model: nn.Module,
    rounds: int,
    algorithm: str,
    on_round: Callable[[dict[str, float]], None],
    batches: Batches = shuffled,
) -> None:
    """Run the rounds with the paper's settings, handing over the metrics of each."""
    dual = 0.0
    clients = list(federation.clients)
    sizes = torch.tensor([float(len(client)) for client in clients])
    shares = sizes / sizes.sum()
    validation = federation.validation
    assert validation is not None
    for number in range(1, rounds + 1):
        mean: dict[str, Tensor] = {}
        gaps = 0.0
        lr = 0.05 * 0.5 ** ((number - 1) // 50)
        for place, (client, share) in enumerate(zip(clients, shares.tolist(), strict=True)):
            local = copy.deepcopy(model)
            order = batches(number, place, len(client))
            _train(local, client, order, lr, dual, 2.0 if algorithm == "ffalm" else 0.0)
            if algorithm == "ffalm":
                gaps += share * _gap(local, client)
            for name, value in local.state_dict().items():
                mean[name] = mean.get(name, 0) + share * value
        model.load_state_dict(mean)
        dual += 2.0 * 1.05 ** (number - 1) * gaps
        on_round(_metrics(model, validation))


def _train(model: nn.Module, client: Examples, order: Sequence[Tensor], lr: float, dual: float, penalty: float) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for rows in order:
        x, y, group = _inputs(client.x[rows]), client.y[rows], client.group[rows]
        losses = cross_entropy(model(x), y, reduction="none")
        loss = losses.mean()
        if penalty and (group == 0).any() and (group == 1).any():
            gap = losses[group == 0].mean() - losses[group == 1].mean()
            loss = loss + dual * gap + penalty / 2 * gap**2
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@torch.no_grad()
def _gap(model: nn.Module, client: Examples) -> float:
    model.eval()
    losses = cross_entropy(model(_inputs(client.x)), client.y, reduction="none")
    means = [losses[client.group == group].mean() for group in (0, 1)]
    return float((means[0] - means[1]).nan_to_num(0.0))


@torch.no_grad()
def _metrics(model: nn.Module, part: Examples) -> dict[str, float]:
    model.eval()
    logits = model(_inputs(part.x))
    chosen = logits.argmax(-1)
    rates = [(chosen[part.group == group] == 1).float().mean() for group in (0, 1)]
    true = [(chosen[(part.group == group) & (part.y == 1)] == 1).float().mean() for group in (0, 1)]
    return {
        "accuracy": float((chosen == part.y).float().mean()),
        "dpd": float((rates[0] - rates[1]).abs()),
        "eod": float((true[0] - true[1]).abs()),
        "loss": float(cross_entropy(logits, part.y)),
    }


def _inputs(x: Tensor) -> Tensor:
    return x.to(torch.get_default_dtype()) / 255 if x.dtype == torch.uint8 else x
