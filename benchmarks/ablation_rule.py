"""Ablation of FFALM: one part of the method changed at a time, and the rule that chooses among the variants.

The rule was written before the runs (docs/results/ablation.md) and looks at held-out rows alone. A condition is a data
set, a partition and a skew; every variant runs on the same conditions and seeds as FedAvg.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from ffalm.outcome import Outcome
from ffalm.report.tables import Cell, Column, Row, Section, Table, percent, row
from ffalm.reproduce.frontier import AFFORDABLE, last_rounds
from ffalm.reproduce.paper import METRICS
from ffalm.studies.results import Study
from ffalm.targets.candidates import why_degenerate

BASE = "FedAvg"
_SAFE = {"name": "ffalm", "preset": "safe"}
_PAPER = {"name": "ffalm", "preset": "paper"}
_RELEASED = {"name": "ffalm", "preset": "released-code"}

#: Plainer methods, which stand in the same table and are never called a variant of FFALM.
PLAINER: dict[str, dict[str, Any]] = {
    BASE: {"name": "fedavg"},
    "FPFL": {"name": "fpfl"},
    "lagrangian-eo": {"name": "lagrangian", "constraint": "eo"},
    "lagrangian-dp": {"name": "lagrangian", "constraint": "dp"},
}
#: What stabilises the dual is tried on the paper's schedule, which needs it; all else on `safe`.
VARIANTS: dict[str, dict[str, Any]] = {
    "ffalm-paper": _PAPER,
    "ffalm-paper-dual-bound-1": {**_PAPER, "dual_bound": 1.0},
    "ffalm-paper-decaying-steps": {**_PAPER, "dual_lr_growth": 1 / 1.05},
    "ffalm-paper-capped-steps": {**_PAPER, "dual_step_cap": 0.1},
    "ffalm-paper-dual-decay": {**_PAPER, "dual_decay": 0.1},
    "ffalm-paper-nonnegative-weights": {**_PAPER, "nonnegative_weights": True},
    "ffalm-released-code": _RELEASED,
    "ffalm-released-code-nonnegative-weights": {**_RELEASED, "nonnegative_weights": True},
    "ffalm-safe": _SAFE,
    "ffalm-safe-dual-bound-0.25": {**_SAFE, "dual_bound": 0.25},
    "ffalm-safe-decaying-steps": {**_SAFE, "dual_lr_growth": 1 / 1.05},
    "ffalm-safe-capped-steps": {**_SAFE, "dual_step_cap": 0.01},
    "ffalm-safe-dual-decay": {**_SAFE, "dual_decay": 0.1},
    "ffalm-safe-pooled-gap": {**_SAFE, "gap": "pooled"},
    "ffalm-safe-held-out-gap": {**_SAFE, "gap": "held_out"},
    "ffalm-safe-normalised-gap": {**_SAFE, "normalised_gap": True},
    "ffalm-safe-nonnegative-weights": {**_SAFE, "nonnegative_weights": True},
    "ffalm-safe-feasibility-penalty": {**_SAFE, "penalty_growth": 1.1, "sufficient_decrease": 0.9},
    "ffalm-safe-pi-control": {**_SAFE, "dual_proportional": 2.0},
    "ffalm-safe-held-out-gap-nonnegative-weights": {**_SAFE, "gap": "held_out", "nonnegative_weights": True},
}
CURRENT = "ffalm-safe"  # what `recommended` stands for while nothing better is found

_TOLD = (*METRICS, "loss_gap")

Condition = tuple[str, str, float]
"""Data set, partition, alpha."""


@dataclass(frozen=True)
class Scored:
    """A run: its metrics on held-out rows (means of its last rounds) and on test rows, and whether it is a result."""

    condition: Condition
    label: str
    seed: int
    validation: dict[str, float]
    test: dict[str, float]
    degenerate: str  # why its final model is no result on held-out rows; empty where it is one
    largest_dual: float

    @property
    def gap(self) -> float:
        """The mean of DPD and EOD on held-out rows."""
        return (self.validation["dpd"] + self.validation["eod"]) / 2


@dataclass(frozen=True)
class Verdict:
    """A method under the rule."""

    label: str
    worst_loss: float  # the largest loss of mean accuracy against FedAvg, over conditions
    degenerate: int  # runs that are no result where FedAvg's are
    score: float  # the mean over conditions of its gap as a share of FedAvg's

    @property
    def passes(self) -> bool:
        """Whether it may be chosen."""
        return self.degenerate == 0 and self.worst_loss <= AFFORDABLE


def scored(study: Study, data: str, partition: str) -> list[Scored]:
    """Every finished run of a study."""
    return [
        Scored(
            (data, partition, float(run.alpha or 0)),
            run.label,
            run.seed,
            last_rounds(run, _TOLD),
            run.test,
            _why(study, run),
            max((abs(dual) for record in run.history for dual in _numbers(record.get("dual"))), default=0.0),
        )
        for run in study.results
    ]


def verdicts(runs: Sequence[Scored]) -> list[Verdict]:
    """Every method against FedAvg, in the order of the runs."""
    base = {(run.condition, run.seed): run for run in runs if run.label == BASE}
    found = []
    for label in dict.fromkeys(run.label for run in runs):
        losses, shares, degenerate = [], [], 0
        for condition in dict.fromkeys(run.condition for run in runs):
            mine = [run for run in runs if (run.label, run.condition) == (label, condition)]
            if not mine:
                continue
            theirs = [base[condition, run.seed] for run in mine]
            degenerate += sum(
                bool(run.degenerate) and not other.degenerate for run, other in zip(mine, theirs, strict=True)
            )
            losses.append(_mean(theirs, "accuracy") - _mean(mine, "accuracy"))
            ours, base_gap = (fmean(run.gap for run in some) for some in (mine, theirs))
            shares.append(ours / base_gap if base_gap else math.inf if ours else 1.0)
        found.append(Verdict(label, max(losses), degenerate, fmean(shares)))
    return found


def chosen(judged: Iterable[Verdict]) -> str | None:
    """The variant of FFALM to recommend; None where none passes or none has smaller gaps than FedAvg."""
    left = [one for one in judged if one.label in VARIANTS and one.passes and one.score < 1]
    return min(left, key=lambda one: one.score).label if left else None


def finalists(judged: Iterable[Verdict], most: int = 5) -> list[str]:
    """Whom the second data set sees: the plainer methods, `CURRENT`, and the best of the variants that pass."""
    left = sorted((one for one in judged if one.label in VARIANTS and one.passes), key=lambda one: one.score)
    return list(dict.fromkeys([*PLAINER, CURRENT, *(one.label for one in left[:most])]))


def findings(judged: Sequence[Verdict]) -> list[str]:
    """What the rule says, in sentences."""
    best = chosen(judged)
    if best is None:
        lines = ["No variant of FFALM passes the rule with smaller gaps than FedAvg: `recommended` stays as it is."]
    else:
        lines = [f"Of the variants of FFALM that pass, {best} has the smallest gaps: it becomes `recommended`."]
    limit = next((one.score for one in judged if one.label == best), 1.0)
    plainer = [one for one in judged if one.label in PLAINER and one.passes and one.score < limit]
    lines += [
        f"The plainer {one.label} passes too, with smaller gaps ({one.score:.2f} of FedAvg's against {limit:.2f})."
        for one in sorted(plainer, key=lambda one: one.score)
    ]
    return lines


def table(runs: Sequence[Scored], judged: Sequence[Verdict], part: str = "validation") -> Table:
    """Means over seeds by condition, accuracy / DPD / EOD in percent, and the verdicts; those that pass in bold."""
    conditions = list(dict.fromkeys(run.condition for run in runs))
    heads = [" ".join((data, partition, f"{alpha:g}")) for data, partition, alpha in conditions]
    columns = [Column(name) for name in ("Method", *heads, "Worst loss", "Degenerate", "Gaps, of FedAvg's", "Passes")]
    rows: list[Row] = []
    for one in judged:
        cells = [
            _triple([run for run in runs if (run.label, run.condition) == (one.label, condition)], part)
            for condition in conditions
        ]
        verdict = (percent(one.worst_loss), str(one.degenerate), f"{one.score:.2f}", "yes" if one.passes else "no")
        rows.append(row(Cell(one.label, bold=one.passes), *cells, *verdict))
    return Table(f"Ablation of FFALM, {part} rows", columns, [Section(rows)])


def tidy(runs: Sequence[Scored]) -> Table:
    """One row a run, as fractions in full precision."""
    columns = ["data", "partition", "alpha", "algorithm", "seed", "degenerate", "largest_dual"]
    columns += [f"{part}_{metric}" for part in ("validation", "test") for metric in _TOLD]
    rows = [
        row(
            *run.condition,
            run.label,
            run.seed,
            run.degenerate,
            run.largest_dual,
            *(part.get(metric) for part in (run.validation, run.test) for metric in _TOLD),
        )
        for run in runs
    ]
    return Table("", [Column(name) for name in columns], [Section(rows)])


def from_csv(text: str) -> list[Scored]:
    """The runs of a table that `tidy` made."""

    def metrics(line: dict[str, str], part: str) -> dict[str, float]:
        return {metric: float(line[f"{part}_{metric}"] or "nan") for metric in _TOLD}

    return [
        Scored(
            (line["data"], line["partition"], float(line["alpha"])),
            line["algorithm"],
            int(line["seed"]),
            metrics(line, "validation"),
            metrics(line, "test"),
            line["degenerate"],
            float(line["largest_dual"]),
        )
        for line in csv.DictReader(text.splitlines())
    ]


def _why(study: Study, run: Outcome) -> str:
    if run.diverged is not None:
        return "diverged"
    histogram = study.scores(run)["validation"]
    assert histogram.as_trained is not None
    tally = histogram.tally([histogram.as_trained] * histogram.groups)
    return why_degenerate(tally, tally.accuracy())


def _numbers(value: Any) -> Iterable[float]:
    """A dual of a record: one number, a list of them, or none."""
    return chain(value) if isinstance(value, list) else () if value is None else (value,)


def _mean(runs: Sequence[Scored], metric: str) -> float:
    return fmean(run.validation[metric] for run in runs)


def _triple(runs: Sequence[Scored], part: str) -> str:
    means = [fmean(getattr(run, part)[metric] for run in runs) for metric in METRICS] if runs else []
    return " / ".join(f"{100 * mean:.1f}" for mean in means)
