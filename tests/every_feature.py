"""An algorithm that uses every part of the contract at once: what engines must agree on, whatever a user writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, Batch, Measure, ModelVector, RoundReport, Sent, State, Vectors
from ffalm.algorithms.contract import CHANGE, Task
from ffalm.fairness import masked_mean


@dataclass(frozen=True)
class EveryFeature(Algorithm):
    """State of server and clients, vectors of both, uploads, drift, logits, both Tallies, inner products of the
    clients' vectors, own weights of an upload and a server step."""

    name: ClassVar[str] = "every_feature"
    title: ClassVar[str] = "EveryFeature"
    broadcasts: ClassVar[tuple[str, ...]] = ("price", "velocity")
    server_vectors: ClassVar[tuple[str, ...]] = ("velocity", "scale")
    client_vectors: ClassVar[tuple[str, ...]] = ("change", "sum")
    uploads: ClassVar[tuple[str, ...]] = ("gradient", "weighted")
    products: ClassVar[tuple[str, ...]] = ("weighted", CHANGE)

    logits: bool = True

    @property
    def measure(self) -> Measure:
        return Measure.TRAINED

    def by_outputs(self, task: Task) -> bool:
        return self.logits

    def start(self, task: Task, counts: Tensor) -> State:
        price = torch.full((*counts.shape[:-3], task.groups), 0.3, dtype=torch.float64)
        near = torch.zeros(*counts.shape[:-3], counts.shape[-3], dtype=torch.float64)
        return {"price": price, "held_out": torch.zeros(counts.shape[:-3], dtype=torch.float64), "near": near}

    def own_state(self, task: Task, counts: Tensor) -> State:
        return {"labels": 0.1 * counts.sum(-1).double() / counts.sum()}

    def start_vectors(self, model: ModelVector) -> Vectors:
        return {"velocity": 0.1 * model, "scale": model.zeros() + 0.01}

    def objective(self, batch: Batch, state: State) -> Tensor:
        term = batch.favourable_probability() if self.logits else batch.losses
        price = state["price"].gather(-1, batch.groups) + state["labels"].gather(-1, batch.labels)
        return masked_mean(batch.losses, batch.mask) + masked_mean(price * term**2, batch.mask)

    def drift(self, weights: ModelVector, sent: Sent, own: Vectors) -> ModelVector:
        near = 0.1 * (weights - sent.model) + 0.05 * sent.vectors["velocity"]
        return near - 0.2 * own["change"] + 0.1 * own["sum"].sign()

    def finish(
        self, weights: ModelVector, sent: Sent, own: Vectors, steps: Tensor, lr: float
    ) -> tuple[Vectors, Vectors]:
        change = 0.5 * own["change"] + (sent.model - weights) / steps
        total = own["sum"] + sent.vectors["velocity"] - weights * weights
        return {"change": change, "sum": total}, {"gradient": change - own["change"], "weighted": weights * steps}

    def dual_step(self, state: State, report: RoundReport) -> State:
        assert report.tally is not None
        losses = report.tally.loss.sum(-2) / (1 + report.tally.count.sum(-2))
        price = state["price"] + 0.1 * (report.shares().unsqueeze(-1) * losses).sum(-2)
        seen = report.validation
        moved = 0.0 if seen is None else seen.loss.sum((-1, -2)) / seen.count.sum((-1, -2))
        assert report.products is not None
        assert not report.products[:, ~report.taking_part].any()
        near = report.products[1, :, 1].sum(-1) * report.lr + 0.01 * report.products[0, :, 1].diagonal()
        return {"price": price, "held_out": state["held_out"] + moved, "near": near}

    def weigh_uploads(self, weights: Tensor, state: State) -> dict[str, Tensor]:
        return {**super().weigh_uploads(weights, state), "gradient": weights + state["near"]}

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        velocity = 0.9 * vectors["velocity"] + (mean - model) + 0.01 * uploads["gradient"]
        scale = vectors["scale"] + 0.1 * (uploads["weighted"] * uploads["weighted"])
        return model + 0.5 * (velocity / (scale.sqrt() + 1.0)), {"velocity": velocity, "scale": scale}


@dataclass(frozen=True)
class EveryGradient(Algorithm):
    """Gradients of two objectives instead of training, one by logits or losses, and a Tally beside them."""

    name: ClassVar[str] = "every_gradient"
    title: ClassVar[str] = "EveryGradient"
    uploads: ClassVar[tuple[str, ...]] = ("first", "second")
    gradients: ClassVar[tuple[str, ...]] = ("first", "second")
    products: ClassVar[tuple[str, ...]] = ("second", CHANGE)

    logits: bool = True

    @property
    def measure(self) -> Measure:
        return Measure.RECEIVED if self.logits else Measure.EPOCH

    def by_outputs(self, task: Task) -> bool:
        return self.logits

    def start(self, task: Task, counts: Tensor) -> State:
        return {"told": torch.zeros(counts.shape[-3], 4, dtype=torch.float64)}

    def objectives(self, batch: Batch, state: State) -> Tensor:
        term = batch.favourable_probability() if self.logits else batch.losses
        return torch.stack([masked_mean(term**2, batch.mask), masked_mean(batch.losses, batch.mask)], -1)

    def dual_step(self, state: State, report: RoundReport) -> State:
        assert report.values is not None and report.products is not None and report.tally is not None
        products = report.products.diagonal(dim1=1, dim2=3)[:, 0]  # of both vectors with the second
        assert not products[1].any()  # nobody trained
        rows = report.tally.count.sum((-1, -2)).clamp(min=1)
        losses = report.tally.loss.sum((-1, -2)) / rows
        return {"told": torch.cat([report.values, products[:1].T, losses.unsqueeze(-1)], -1)}

    def weigh_uploads(self, weights: Tensor, state: State) -> dict[str, Tensor]:
        return {"first": weights, "second": state["told"][:, 0]}

    def server_step(
        self, model: ModelVector, mean: ModelVector, vectors: Vectors, uploads: Vectors, report: RoundReport
    ) -> tuple[ModelVector, Vectors]:
        return mean - report.lr * (uploads["first"] + uploads["second"]), vectors
