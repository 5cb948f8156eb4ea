"""The tabular study in ffalm's engines, and in the plain loop that they are measured against."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from work import Ledger, Part, Work

import ffalm
from ffalm.algorithms import algorithm_class
from ffalm.data.types import Dataset, Examples, Task
from ffalm.engines import Job, Training
from ffalm.engines.choice import ENGINES
from ffalm.engines.sampling import batches
from ffalm.federation import Federation
from ffalm.partition import Partition

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plain import train_plainly
from tabular import model_of


def main() -> None:
    """Train and write the ledger; the metrics are those of the first seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("ledger")
    parser.add_argument("--algorithm", default="ffalm", choices=["ffalm", "fedavg"])
    parser.add_argument("--engine", default="stacked", choices=["plain", "loop", "stacked"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, help="as many as the file has orders for, unless told")
    asked = parser.parse_args()
    work, ledger = Work.load(asked.work), Ledger(asked.ledger)
    training = Training(rounds=asked.rounds or len(work.orders))
    if asked.engine == "plain":
        owned = tuple(_examples(part) for part in work.clients)
        federation = Federation(owned, _examples(work.test), None, Task("adult"))
        train_plainly(
            federation, work.model(), training.rounds, asked.algorithm, ledger.note,
            lambda number, client, rows: batches(0, number, client, rows, training),
        )  # fmt: skip
    else:
        jobs = _jobs(work, asked.algorithm, asked.seeds, training)
        for seen, (number, done) in enumerate(ENGINES[asked.engine]().train(jobs), start=1):
            if number == 0:
                found = {name: done.record[name] for name in ("accuracy", "dpd", "eod")}
            if seen % len(jobs) == 0:
                ledger.note(found)
    ledger.close(peer=f"ffalm {ffalm.__version__}")


def _jobs(work: Work, algorithm: str, seeds: list[int], training: Training) -> list[Job]:
    """One job a seed, each with its own partition; seed 0 has that of the file."""
    test = _examples(work.test)
    everything = Dataset(Task("adult"), _examples(work.train), test, test)
    inputs = test.x.shape[1]
    return [
        Job(
            algorithm_class(algorithm)(),
            Federation.from_dataset(everything, Partition("plain", 10, 0.3), seed),
            lambda: model_of("mlp", inputs), training, seed, torch.device("cpu"),
        )
        for seed in seeds
    ]  # fmt: skip


def _examples(part: Part) -> Examples:
    return Examples(part.x, part.y, part.group)


if __name__ == "__main__":
    main()
