"""How hard the constraint pulled: the largest absolute dual, and the share of steps that weighed some row negatively.

FFALM weighs a row of group 0 by 1/n + a/n_0 and one of group 1 by 1/n - a/n_1, with a = dual + penalty * gap. Past a
group's share of the batch, n_s/n, the other group's rows are weighed negatively: training raises their loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ffalm.outcome import Outcome, Record
from ffalm.reproduce.sheets import Cell

#: No group's share of a batch is larger than this.
LARGEST_SHARE = 1.0

PULL_TITLE = (
    "How hard the constraint pulled: the largest absolute dual, and the largest share of a round's steps that weighed "
    "some row negatively"
)
PULL_HEADS = ["Algorithm", "Largest dual", "Seed", "Round", "Runs past 1", "Negative share"]


@dataclass(frozen=True)
class Strength:
    """The extremes over the rounds and seeds of one algorithm."""

    dual: float | None  # largest absolute value; None where the algorithm keeps no dual
    dual_seed: int | None
    dual_round: int | None
    past: int  # runs in which the dual went past every share that a group can have of a batch
    negative: float  # largest share, in a round, of local steps with a negative row weight
    runs: int


def strength(outcomes: Iterable[Outcome]) -> Strength:
    """The extremes of some runs."""
    runs = list(outcomes)
    duals = [
        (size, run.seed, int(record["round"])) for run in runs for record in run.history for size in _duals(record)
    ]
    largest = max(duals, default=None)
    past = {seed for size, seed, _ in duals if size > LARGEST_SHARE}
    shares = [float(record.get("negative_weight_share", 0.0)) for run in runs for record in run.history]
    dual, seed, number = largest if largest is not None else (None, None, None)
    return Strength(dual, seed, number, len(past), max(shares, default=0.0), len(runs))


def warning(label: str, found: Strength) -> str | None:
    """A sentence where the dual grew past what the batches' shares allow."""
    if found.dual is None or not found.past:
        return None
    return (
        f"{label}: in {found.past} of {found.runs} runs the dual went past 1, beyond any group's share of a batch "
        f"(largest {found.dual:.3g}, seed {found.dual_seed}, round {found.dual_round}), so that on its own it weighs "
        f"one group's rows negatively; steps that did so made up {found.negative:.0%} of a round at most."
    )


def pull_row(label: str, found: Strength) -> list[Cell]:
    """The row of a table under `PULL_HEADS`."""
    dual = ["none", "", "", ""]
    if found.dual is not None:
        dual = [f"{found.dual:.3g}", str(found.dual_seed), str(found.dual_round), f"{found.past} of {found.runs}"]
    return [Cell(text) for text in [label, *dual, f"{found.negative:.0%}"]]


def _duals(record: Record) -> Iterator[float]:
    """The sizes of a round's duals, whatever shape they are kept in."""
    yield from _sizes(record.get("dual", record.get("duals")))


def _sizes(value: Any) -> Iterator[float]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _sizes(item)
    elif isinstance(value, int | float) and math.isfinite(value):
        yield abs(float(value))
