"""The outcomes of runs in plain values: what run folders store and reports read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

from ffalm.targets.answer import Answer
from ffalm.targets.degenerate import Flaws, degenerate_reason, flaws_of, majority_share
from ffalm.targets.target import Repair, Scope

#: The metrics of the paper's tables, with what a reader calls them and whether more is better.
HEADLINE = {"accuracy": ("Accuracy", True), "dpd": ("DPD", False), "eod": ("EOD", False)}

Record = dict[str, Any]
"""One round: `round`, every validation metric by name, state entries such as `dual`, `weights`, `seconds`."""


def validation_accuracy(record: Record) -> float:
    """The validation accuracy, by which rounds are compared; -inf if it was not measured or is undefined."""
    accuracy = record.get("accuracy")
    return -math.inf if accuracy is None or math.isnan(accuracy) else float(accuracy)


def duals(record: Record) -> list[float]:
    """The duals of a round as a flat list, in whatever shape the algorithm keeps them; NaN for what is not a number."""
    return list(_flat(record.get("dual", record.get("duals"))))


def _flat(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    elif value is not None:
        yield float(value) if isinstance(value, int | float) else math.nan


Counts = Sequence[Sequence[Sequence[float]]]
"""Rows by prediction, label and group, from which any group metric can be had; privacy makes them fractions."""


@dataclass(frozen=True)
class Outcome:
    """One run: one algorithm, one seed, one federation."""

    label: str  # how the table names the algorithm, e.g. "FFALM (safe)"
    algorithm: str  # its registered name, e.g. "ffalm"
    seed: int
    alpha: float | None  # the Dirichlet skew of its federation, None where the partition has none
    test: dict[str, float]  # test metrics as fractions; NaN where undefined or diverged
    intervals: dict[str, tuple[float, float]]  # 95 % intervals of test metrics over the sampling of the test rows
    history: list[Record]
    seconds: float
    diverged: str | None = None  # why the run was stopped, None where it finished
    confusion: Counts | None = None  # the test rows behind the metrics, None in runs that kept none
    kept: int | None = None  # the round whose model was scored, None where it was the last
    place: str = "."  # the run's folder within the study's

    def __repr__(self) -> str:
        figures = [f"{name}={self.test[name]:.4f}" for name in HEADLINE if name in self.test]
        skew = [] if self.alpha is None else [f"alpha={self.alpha:g}"]
        ended = [] if self.diverged is None else ["diverged"]
        return f"Outcome({', '.join([self.label, *skew, f'seed={self.seed}', *figures, *ended])})"

    @property
    def scored_round(self) -> Record:
        """The record of the round whose model was scored; empty without a history."""
        rounds = [record for record in self.history if self.kept in (None, record["round"])]
        return rounds[-1] if rounds else {}

    @property
    def held_out(self) -> dict[str, float]:
        """The validation metrics of that model; empty where nothing was held out."""
        scored = self.scored_round
        return {name: scored[name] for name in self.test if name in scored}

    @property
    def majority(self) -> float:
        """The share of the most frequent label among the test rows; NaN in runs that kept no counts."""
        return math.nan if self.confusion is None else majority_share(_labels(self.confusion))

    @property
    def flaws(self) -> Flaws:
        """What makes its model degenerate; runs that diverged or kept no counts are judged by their duals alone."""
        largest = max((abs(dual) for dual in duals(self.scored_round) if math.isfinite(dual)), default=0.0)
        counts = self.confusion if self.diverged is None and self.confusion is not None else []
        predicted = [sum(map(sum, part)) for part in counts]
        accuracy = self.test.get("accuracy", math.nan)
        return flaws_of(predicted or [0.0], _labels(counts) or [0.0], accuracy, largest)

    @property
    def degenerate(self) -> str:
        """Why its model is no result, in words; empty where it is one or where the run diverged."""
        return "" if self.diverged else degenerate([self])


def _labels(counts: Counts) -> list[float]:
    """The rows of each true label."""
    return [sum(sum(part) for part in same) for same in zip(*counts, strict=True)]


def degenerate(finished: Sequence[Outcome]) -> str:
    """Why the models of an algorithm's finished runs are degenerate, in words; empty where they are not."""
    flaws = [run.flaws for run in finished]
    counted = [run for run in finished if run.confusion is not None]
    accuracy, majority = (
        (fmean(run.test.get("accuracy", math.nan) for run in counted), fmean(run.majority for run in counted))
        if counted
        else (math.nan, math.nan)
    )
    single, runaway = sum(one.one_label for one in flaws), sum(one.runaway_dual for one in flaws)
    return degenerate_reason(single, len(finished), accuracy, majority, runaway)


@dataclass(frozen=True)
class LeftOut:
    """A default algorithm that was left out because it cannot take the study's data, and why."""

    label: str
    reason: str  # the algorithm's own refusal, one sentence


@dataclass(frozen=True)
class StudyRecord:
    """`study.json`: what a report needs besides the runs. It is written before the first run starts."""

    title: str
    task: dict[str, str]  # "data", "label", "favourable", "groups": what was predicted and for whom
    choices: dict[str, str]  # every setting a reader needs to judge the numbers, in reading order
    clients: list[dict[str, Any]]  # one row per client of the first seed's federation: name, rows, shares
    runs: list[str]  # the run folders in the order of the table, relative to the folder of this file
    group_names: tuple[str, ...] = ()  # in the order of the runs' counts; empty where only gaps are known
    favourable: int = 1  # the label that people want, as the runs' counts number it
    duals_by_group: tuple[str, ...] = ()  # labels of the algorithms whose duals charts name by group
    data_notes: tuple[str, ...] = ()  # what the data source and the partition say about the rows
    left_out: tuple[LeftOut, ...] = ()
    keep: str = "last"  # the rule of model selection
    delta: float | None = None  # of a simulation with differential privacy; a federation's guarantee is in `data_notes`
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""  # that started the study
    target: str | None = None  # the fairness target of the study, with the settings of its answer
    repair: Repair = "groups"
    confidence: float | None = None
    excluded: int = 0  # how many of the last groups are scored but not compared
    scope: Scope = "federation"
    engine: str = ""  # that computes the runs, so that a resumed study stays with it
    fingerprints: dict[str, str] = field(default_factory=dict)  # of the settings and the data, to resume the same
    answer_notes: tuple[str, ...] = ()  # what a reader of the answer should know about its rows
    references: tuple[str, ...] = ()  # labels of algorithms that train without a federation: no answer chooses them
    federated: bool = False  # whether the rows are at real sites, so that no second model can be trained on them

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> StudyRecord:
        """The record from the JSON form of `dataclasses.asdict`; raises KeyError or TypeError if it is not one."""
        if unknown := sorted(values.keys() - {one.name for one in fields(cls)}):
            raise KeyError(f"unknown entry {unknown[0]!r}")
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        texts = ("group_names", "duals_by_group", "references", "data_notes", "answer_notes")
        tuples = {name: tuple(known.get(name, ())) for name in texts}
        left_out = tuple(LeftOut(**one) for one in known.get("left_out", ()))
        return cls(**{**known, **tuples, "left_out": left_out})


@dataclass(frozen=True)
class StudyOutcome(StudyRecord):
    """Everything a report says: the question asked, who owned what, and every run."""

    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # warnings and caveats, in sentences
    answers: list[Answer] = field(default_factory=list)  # to the study's target, one per skew
    finished: str = ""  # when the last run was, as text
    per_client: list[dict[str, Any]] = field(default_factory=list)  # one model's metrics on each client's own rows
    per_client_of: str = ""  # which model that is
    progress: str = ""  # how far a study is that still runs, in a sentence

    @property
    def compared(self) -> tuple[str, ...]:
        """The groups that are compared."""
        return self.group_names[: len(self.group_names) - self.excluded]

    def group_title(self, place: int) -> str:
        """The name of a group in tables by group."""
        name = self.group_names[place]
        return name if place < len(self.compared) else f"{name} (not compared)"

    def labels(self) -> list[str]:
        """The algorithms in the order in which they were given."""
        return list(dict.fromkeys(outcome.label for outcome in self.outcomes))

    def alphas(self) -> list[float | None]:
        """The skews in the order in which they were given."""
        return list(dict.fromkeys(outcome.alpha for outcome in self.outcomes))


def groups_text(group: str, names: Sequence[str], excluded: int = 0) -> str:
    """The groups as a report names them; those that are not compared are listed separately."""
    between = "; " if any("," in name for name in names) else ", "  # crossed groups have commas of their own
    compared, others = names[: len(names) - excluded], names[len(names) - excluded :]
    apart = f"; not compared: {between.join(others)}" if others else ""
    return f"{group}: {between.join(compared)}{apart}"
