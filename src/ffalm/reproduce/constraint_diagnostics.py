"""How strongly the constraint acted: the largest absolute dual, and the share of steps with a negative row weight.

FFALM weights a row of group 0 by 1/n + a/n_0 and one of group 1 by 1/n - a/n_1, with a = dual + penalty * gap. Where
|a| exceeds a group's share of the batch, n_s/n, the other group's rows have a negative weight: training raises their
loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ffalm.outcome import Outcome, duals
from ffalm.report.tables import Column, Kind, Row, Section, Table, row

#: No group's share of a batch is larger than this.
LARGEST_SHARE = 1.0

_COLUMNS: dict[str, Kind] = {
    "Algorithm": "text",
    "Largest dual": "number",
    "Seed": "count",
    "Round": "count",
    "Runs past 1": "count",
    "Negative share": "share",
}


@dataclass(frozen=True)
class Diagnostics:
    """The extremes over the rounds and seeds of one algorithm."""

    dual: float | None  # largest absolute value; None where the algorithm keeps no dual
    dual_seed: int | None
    dual_round: int | None
    past: int  # runs in which the dual exceeded every share that a group can have of a batch
    negative: float  # largest share, in a round, of local steps with a negative row weight
    runs: int


def diagnose(outcomes: Iterable[Outcome]) -> Diagnostics:
    """The extremes of some runs."""
    runs = list(outcomes)
    sizes = [
        (abs(dual), run.seed, int(record["round"]))
        for run in runs
        for record in run.history
        for dual in duals(record)
        if math.isfinite(dual)
    ]
    past = {seed for size, seed, _ in sizes if size > LARGEST_SHARE}
    shares = [float(record.get("negative_weight_share", 0.0)) for run in runs for record in run.history]
    dual, seed, number = max(sizes, default=(None, None, None))
    return Diagnostics(dual, seed, number, len(past), max(shares, default=0.0), len(runs))


def warning(label: str, found: Diagnostics) -> str | None:
    """A warning if the dual grew beyond what the groups' shares of a batch allow."""
    if found.dual is None or not found.past:
        return None
    return (
        f"{label}: in {found.past} of {found.runs} runs the dual exceeded 1, hence every group's share of a batch "
        f"(largest {found.dual:.3g}, seed {found.dual_seed}, round {found.dual_round}), so that on its own it gives "
        f"one group's rows a negative weight; steps with negative weights made up at most "
        f"{100 * found.negative:.0f} % of a round."
    )


def table(sections: Mapping[str, Iterable[tuple[str, Diagnostics]]]) -> Table:
    """The diagnostics of named algorithms, under the headings of their sections."""
    columns = [Column(head, kind) for head, kind in _COLUMNS.items()]
    found = [Section([_row(label, one) for label, one in rows], heading) for heading, rows in sections.items()]
    caption = "largest absolute dual, and largest share of a round's steps in which some row had a negative weight."
    return Table("Constraint diagnostics", columns, found, caption)


def _row(label: str, found: Diagnostics) -> Row:
    if found.dual is None:
        return row(label, "none", None, None, None, found.negative)
    past = f"{found.past} of {found.runs}"
    return row(label, found.dual, found.dual_seed, found.dual_round, past, found.negative)
