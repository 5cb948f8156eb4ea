"""Lying sites against the rules of a federation: accuracy and DPD of FFALM with some of ten sites lying every round.

    python -m benchmarks.attacks --rounds 30 --liars 1 2 3
    python -m benchmarks.attacks --rounds 20 --liars 1 2 --rows 6000 --seeds 5 --defences none trimmed

With several seeds a cell is the mean and the worst over seeds of what is lost in accuracy and gained in DPD against the
honest mean of the same seed (first column of the row "none").
The rounds are those of the simulation, with the coordinator's own checks (`outlier`), aggregation and `max_share`
between the clients' answers and the mean; answers are those of sites that take the dual step themselves. With real
processes in the place of the simulation: `attacked_federation.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean

import torch

import ffalm
from benchmarks import lies
from ffalm.config import entry_of
from ffalm.data.types import Task
from ffalm.engines import ClientSpec, Job, Snapshot, Training
from ffalm.engines.jobs import Model
from ffalm.engines.loop import Learner, LoopClients
from ffalm.engines.server import ClientUpdate, ServerContext, own_step, rounds
from ffalm.fairness import Tally
from ffalm.federate.coordinator.robust_aggregation import Rule, capped, robust
from ffalm.federate.coordinator.update_validation import outliers
from ffalm.models import Linear
from ffalm.simulation import ArchitectureFactory

SITES = 10
ATTACKS = ("none", *lies.ALONE, *lies.INFORMED)


@dataclass(frozen=True)
class Defence:
    """Rules of `federation.toml`."""

    aggregation: Rule = "mean"
    outlier: float = float("inf")
    max_share: float = 1.0


DEFENCES = {
    "none": Defence(),
    "default": Defence(outlier=10.0),
    "clip": Defence("clip", 10.0, 0.2),
    "trimmed": Defence("trimmed", 10.0, 0.2),
    "median": Defence("median", 10.0, 0.2),
    "krum": Defence("krum", 10.0, 0.2),
}


class Attacked(LoopClients):
    """Clients of which the last ones lie, seen through the coordinator's rules."""

    def __init__(self, job: Job, attack: str, liars: int, defence: Defence, claimed: torch.Tensor) -> None:
        super().__init__(job)
        self._job, self._attack, self._defence, self._claimed = job, attack, defence, claimed
        self._clients = list(self._clients)
        self._liars = range(SITES - liars, SITES) if attack != "none" else range(0)
        self._assumed = max(1, liars)
        for client in self._liars:
            self._clients[client] = lies.trained_rows(attack, self._clients[client])

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        spec, sizes = self._job.spec, self._job.federation.counts().sum((-1, -2)).tolist()
        updates = {}
        for client, true in super().train(chosen, sent).items():
            update = lies.measured(self._attack, true) if client in self._liars else true
            state = own_step(spec.algorithm, sent, update.tally, sizes[client], spec.task)
            updates[client] = replace(update, tally=None, state=state)
        honest = [update for client, update in updates.items() if client not in self._liars]
        for client in self._liars:
            if self._attack in lies.INFORMED:
                updates[client] = lies.informed(self._attack, updates[client], honest)
            else:
                updates[client] = lies.told(self._attack, updates[client], sent)
        far = outliers(sent, updates, self._defence.outlier)
        usable = {client: update for client, update in updates.items() if client not in far}
        rows = dict(enumerate(self._claimed.sum((-1, -2)).tolist()))
        return robust(self._defence.aggregation, self._assumed, sent, usable, rows)


def trained(job: Job, attack: str, liars: int, defence: Defence) -> Model:
    """The final model."""
    rows = job.federation.counts()
    if liars:
        rows[SITES - liars :] = lies.claimed(attack, rows[SITES - liars :])
    rows = capped(rows, defence.max_share)
    context = replace(ServerContext.of(job), counts=rows)
    *_, last = rounds(context, Attacked(job, attack, liars, defence, rows))
    return last.snapshot.model


def result(
    federation: ffalm.Federation, attack: str, liars: int, defence: Defence, number: int, seed: int = 0
) -> tuple[float, float]:
    """Accuracy and DPD of the final model on the test part, in percent."""
    entry, task = entry_of("ffalm", {"preset": "safe"}), federation.task
    built = ArchitectureFactory(Linear(), tuple(federation.clients[0].x.shape[1:]), task.labels)
    spec = ClientSpec(entry.algorithm, built, Training(rounds=number), task, seed, torch.device("cpu"))
    assert federation.test is not None
    model = trained(Job(spec, federation), attack, liars, defence)
    return percent(Learner(spec).score(model, federation.test), task)


def percent(tally: Tally, task: Task) -> tuple[float, float]:
    """Accuracy and DPD."""
    metrics = tally.metrics(task.favourable)
    return 100 * metrics["accuracy"], 100 * metrics["dpd"]


def cell(asked: argparse.Namespace, attack: str, liars: int, defence: Defence) -> str:
    """What one seed gives, or what several lose against honest ones: mean and worst."""
    found = []
    for seed in range(asked.seeds):
        federation = loaded(asked.alpha, asked.rows, seed)
        try:
            accuracy, dpd = result(federation, attack, liars, defence, asked.rounds, seed)
        except ffalm.UserError:
            return "-"
        if asked.seeds == 1:
            return f"{accuracy:.1f} / {dpd:.1f}"
        honest = honest_result(asked.alpha, asked.rows, asked.rounds, seed)
        found.append((honest[0] - accuracy, dpd - honest[1]))
    losses, gains = zip(*found, strict=True)
    return f"{mean(losses):.1f} (worst {max(losses):.1f}) / {mean(gains):.1f} (worst {max(gains):.1f})"


@cache
def loaded(alpha: float, rows: int, seed: int) -> ffalm.Federation:
    """The ten sites of a seed."""
    return ffalm.load("census", clients=SITES, alpha=alpha, rows=rows, seed=seed)


@cache
def honest_result(alpha: float, rows: int, number: int, seed: int) -> tuple[float, float]:
    """Accuracy and DPD of the mean where nobody lies."""
    return result(loaded(alpha, rows, seed), "none", 0, DEFENCES["none"], number, seed)


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--liars", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--alpha", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES), choices=list(DEFENCES))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| attack | liars | {' | '.join(asked.defences)} |\n|---|---|{'---|' * len(asked.defences)}")
    for attack in asked.attacks:
        for liars in asked.liars if attack != "none" else [0]:
            cells = [cell(asked, attack, liars, DEFENCES[name]) for name in asked.defences]
            print(f"| {attack} | {liars} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
