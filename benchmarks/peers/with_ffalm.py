"""Either study in ffalm's engines, and in the plain loop that they are measured against."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue
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

METRICS = ("accuracy", "dpd", "eod", "loss")


def main() -> None:
    """Train and write the ledger; the metrics are those of the first seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("ledger")
    parser.add_argument("--algorithm", default="ffalm", choices=["ffalm", "fedavg"])
    parser.add_argument("--engine", default="stacked", choices=["plain", "plain-nchw", "loop", "stacked"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, help="as many as the file has orders for, unless told")
    parser.add_argument("--apart", action="store_true", help="each seed in a process of its own, as in a study")
    asked = parser.parse_args()
    work, ledger = Work.load(asked.work), Ledger(asked.ledger)
    training = Training(rounds=asked.rounds or len(work.orders))
    if asked.engine.startswith("plain"):
        model = work.model()
        if asked.engine == "plain-nchw":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        train_plainly(
            _federation(work), model, training.rounds, asked.algorithm, ledger.note,
            lambda number, client, rows: batches(0, number, client, rows, training),
        )  # fmt: skip
    else:
        jobs = _jobs(work, asked.algorithm, asked.seeds, training)
        done = _apart(jobs, asked.engine) if asked.apart else _rounds(jobs, asked.engine)
        seen: list[list[dict[str, float]]] = [[] for _ in jobs]
        noted = 0
        for number, found in done:
            seen[number].append(found)
            if min(map(len, seen)) > noted:
                ledger.note(seen[0][noted])
                noted += 1
    ledger.close(peer=f"ffalm {ffalm.__version__}")


def _rounds(jobs: list[Job], engine: str) -> Iterator[tuple[int, dict[str, float]]]:
    """The metrics of each round with the number of its job."""
    for number, done in ENGINES[engine]().train(jobs):
        yield number, {name: done.record[name] for name in METRICS}


def _apart(jobs: list[Job], engine: str) -> Iterator[tuple[int, dict[str, float]]]:
    """The same, each job in a process of its own."""
    context = get_context("fork")
    told = context.Queue()
    workers = [context.Process(target=_tell, args=(told, number, job, engine)) for number, job in enumerate(jobs)]
    for worker in workers:
        worker.start()
    for _ in range(jobs[0].training.rounds * len(jobs)):
        yield told.get()
    for worker in workers:
        worker.join()


def _tell(told: Queue[tuple[int, dict[str, float]]], number: int, job: Job, engine: str) -> None:
    for _, scores in _rounds([job], engine):
        told.put((number, scores))


def _jobs(work: Work, algorithm: str, seeds: list[int], training: Training) -> list[Job]:
    """One job a seed. All of the image study begin alike; in the tabular one seed 0 alone begins as the file does."""
    test = _examples(work.test)
    width = test.x.shape[1]
    everything = Dataset(Task("adult"), _examples(work.train), test, test)
    return [
        Job.of(
            algorithm_class(algorithm)(),
            _federation(work) if work.images
            else Federation.from_dataset(everything, Partition("plain", 10, 0.3), seed),
            work.model if work.images else lambda: model_of("mlp", width),
            training, seed, torch.device("cpu"),
        )
        for seed in seeds
    ]  # fmt: skip


def _federation(work: Work) -> Federation:
    """As the file has it."""
    return Federation(tuple(map(_examples, work.clients)), _examples(work.test), None, Task("benchmark"))


def _examples(part: Part) -> Examples:
    return Examples(part.x, part.y, part.group)


if __name__ == "__main__":
    main()
