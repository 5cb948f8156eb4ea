"""Steps of a stack: lines that repeat another's rows are known."""

from __future__ import annotations

import numpy as np
import torch

from ffalm.engines.stacked.schedule import ClientSlot, training_steps

CPU = torch.device("cpu")


def slots(jobs: int) -> list[ClientSlot]:
    """Two clients of each job, the larger first; all jobs see the same batches."""
    draws = [(np.arange(5)[::-1], np.array([2, 2, 1])), (np.arange(3), np.array([2, 1]))]
    return [
        ClientSlot(job, client, 10 * client, len(order), order, sizes)
        for client, (order, sizes) in enumerate(draws)
        for job in range(jobs)
    ]


def test_lines_of_jobs_with_the_same_batches_are_laid_out_once_and_repeated() -> None:
    steps = training_steps(slots(jobs=3), CPU)
    assert len(steps.rows) == 15
    for part in (steps, *steps.windows(6)):
        distinct = part.distinct
        assert 3 * len(distinct.rows) == len(part.rows)
        torch.testing.assert_close(distinct.repeated(distinct.rows), part.rows)
        torch.testing.assert_close(distinct.repeated(distinct.mask()), part.mask())


def test_lines_that_all_differ_stay_as_they_are() -> None:
    distinct = training_steps(slots(jobs=1), CPU).distinct
    assert distinct.places is None
    assert distinct.repeated(distinct.sizes) is distinct.sizes
