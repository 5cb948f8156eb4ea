"""Which open choice changes which metric: one answer changed at a time, compared with the base seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ffalm.errors import require
from ffalm.outcome import Outcome, StudyOutcome
from ffalm.report.summary import HEADS, AlgorithmSummary, Change, changes, metric_title, summarise
from ffalm.report.tables import Cell, Column, Row, Section, Table, row, signed
from ffalm.reproduce import constraint_diagnostics
from ffalm.reproduce.choices import CHOICES, Choice, answers, conflict
from ffalm.reproduce.constraint_diagnostics import Diagnostics, diagnose
from ffalm.reproduce.metric_forms import formed
from ffalm.reproduce.paper import METRICS
from ffalm.reproduce.request import Entry, Request
from ffalm.reproduce.studies import Runner, computed_study

ALPHA = 0.3
_ORDER = ("ffalm", "fairfed", "fpfl")
_BASE = "base"
CSV_COLUMNS = ("algorithm", "choice", "answer", "metric", "mean", "difference", "low", "high", "n", "n_diverged")


Answer = tuple[str, str]
"""A choice and one of its answers; of the base, "base" and its label."""


@dataclass(frozen=True)
class Variant:
    """One answer other than the base's, and the request that asks for it."""

    choice: Choice
    answer: str
    request: Request
    entry: Entry


@dataclass(frozen=True)
class Effect:
    """The result of a variant, and its changes against the base by metric; the base itself has none."""

    algorithm: str
    choice: str
    answer: str
    summary: AlgorithmSummary
    diagnostics: Diagnostics
    changes: dict[str, Change]

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.answer}, base" if self.choice == _BASE else f"{self.choice}: {self.answer}"


def base_request(request: Request) -> Request:
    """The request with one schedule, the first given, since one answer is changed at a time."""
    return replace(request, chosen={**request.chosen, "schedule": answers(request.chosen["schedule"])[0]})


def variants(base: Request, data: str) -> list[Variant]:
    """Every other answer to every question of the data set, except those that equal the base or an earlier one."""
    found: list[Variant] = []
    asked = [choice for choice in CHOICES if choice.name in base.varied or not base.varied]
    for choice in asked:
        if choice.name == "metric" or not choice.applies_to(data):
            continue
        for answer in choice.options:
            chosen = {**base.chosen, choice.name: answer}
            if (why := conflict(chosen)) is not None:
                require(choice.name not in base.varied, why)
                continue
            changed = replace(base, chosen=chosen)
            entry = changed.entries([choice.concerns])[0]
            earlier = [base, *(variant.request for variant in found if variant.choice is choice)]
            if not any(_same(one, changed, data, choice.concerns) for one in earlier):
                found.append(Variant(choice, answer, changed, entry))
    return found


def measure(request: Request, out: Path, run: Runner, data: str) -> list[Effect]:
    """Run the base and every variant, and compare each with the base of its algorithm."""
    base = base_request(request)
    tried = variants(base, data)
    base.check_names([*base.entries(_ORDER), *(variant.entry for variant in tried)])
    effects: list[Effect] = []
    runs = _runs(base, tried, out, run, data)
    for algorithm in _ORDER:
        mine = [variant for variant in tried if variant.choice.concerns == algorithm]
        (entry,) = base.entries([algorithm])
        origin = runs[base.folder_name(data), entry.key]
        parts: dict[Answer, list[Outcome]] = {(_BASE, entry.label): origin}
        for variant in mine:
            found = runs[variant.request.folder_name(data), variant.entry.key]
            parts[variant.choice.name, variant.answer] = found
        if algorithm == "ffalm":
            parts |= {("metric", form): [formed(one, form) for one in origin] for form in _known_forms(origin)}
        effects += compared(algorithm, parts)
    return effects


def table(effects: Sequence[Effect], title: str, caption: str = "") -> Table:
    """The base's numbers, and below them by how much each answer changes them; clear changes in bold."""
    columns = [Column("Choice"), *(Column(HEADS[metric], "percent") for metric in METRICS), Column("Seeds", "count")]
    sections: dict[str, list[Row]] = {}
    for effect in effects:
        cells = [_cell(effect, metric) for metric in METRICS]
        sections.setdefault(effect.algorithm, []).append(row(effect.label, *cells, effect.summary.seeds))
    return Table(title, columns, [Section(rows) for rows in sections.values()], caption)


def diagnostics(effects: Sequence[Effect]) -> Table:
    """The constraint diagnostics under each answer."""
    return constraint_diagnostics.table(
        {"": [(effect.label, effect.diagnostics) for effect in effects if effect.choice != "metric"]}
    )


def findings(effects: Sequence[Effect]) -> list[str]:
    """Which choice changes which metric, in sentences."""
    lines: list[str] = []
    compared = 0
    for metric in METRICS:
        name = metric_title(metric)
        found = [(effect, effect.changes[metric]) for effect in effects if metric in effect.changes]
        compared += sum(change.n > 1 for _, change in found)
        clear = sorted((pair for pair in found if pair[1].clear), key=lambda pair: -abs(pair[1].mean))
        moved = [f"{effect.label} ({signed(change.mean)} points)" for effect, change in clear]
        lines.append(
            f"{name} is clearly changed by {', '.join(moved)}." if moved else f"No choice clearly changed {name}."
        )
    if compared:
        lines.append(
            f"Clear means that the 95 % interval over paired seeds excludes zero; of {compared} such comparisons "
            f"about {0.05 * compared:.0f} would be clear by chance alone."
        )
    else:
        lines.append("With one seed there is no interval, hence nothing can be called clear: run more seeds.")
    return lines


def tidy(effects: Sequence[Effect]) -> Table:
    """One row for every answer and metric, as fractions in full precision; the base has no difference."""
    rows = []
    for effect in effects:
        for metric in METRICS:
            cell, change = effect.summary.cells[metric], effect.changes.get(metric)
            low, high = (change.interval or (None, None)) if change else (None, None)
            named = (effect.algorithm, effect.choice, effect.answer, metric)
            gap = change.mean if change else None
            rows.append(row(*named, cell.mean, gap, low, high, cell.n, effect.summary.diverged))
    return Table("", [Column(name) for name in CSV_COLUMNS], [Section(rows)])


def _same(base: Request, changed: Request, data: str, algorithm: str) -> bool:
    """Whether two requests need the same runs of an algorithm, even under different names."""
    if base.folder_name(data) != changed.folder_name(data):
        return False
    one, other = (request.config(data, [ALPHA], request.entries([algorithm])) for request in (base, changed))
    return one.entries[0].algorithm == other.entries[0].algorithm


def _runs(
    base: Request, tried: Sequence[Variant], out: Path, run: Runner, data: str
) -> dict[tuple[str, str], list[Outcome]]:
    """The runs of every study folder and algorithm; those that share a folder are computed as one study."""
    wanted: dict[str, tuple[Request, dict[str, Entry]]] = {}
    asked = [(base, entry) for entry in base.entries(_ORDER)] + [(one.request, one.entry) for one in tried]
    for request, entry in asked:
        wanted.setdefault(request.folder_name(data), (request, {}))[1][entry.key] = entry
    found: dict[tuple[str, str], list[Outcome]] = {}
    for folder, (request, entries) in wanted.items():
        study = computed_study(request, out, run, data, [ALPHA], list(entries.values()))
        for key, entry in entries.items():
            found[folder, key] = [outcome for outcome in study.outcomes if outcome.label == entry.label]
    return found


def _known_forms(runs: Sequence[Outcome]) -> list[str]:
    """The other forms of the metrics that all runs have; older runs kept no counts."""
    return ["joint", *(["piecewise"] if all(run.confusion is not None for run in runs) else [])]


def compared(algorithm: str, parts: Mapping[Answer, Sequence[Outcome]]) -> list[Effect]:
    """One effect for each answer, compared with the first."""
    names = {answer: str(place) for place, answer in enumerate(parts)}
    named = [replace(run, label=names[answer]) for answer, runs in parts.items() for run in runs]
    study = StudyOutcome("", {}, {}, [], [], outcomes=named)
    differences = changes(study)
    summaries = {summary.label: summary for summary in summarise(study)}
    return [
        Effect(
            algorithm,
            *answer,
            summaries[names[answer]],
            diagnose(runs),
            {one.metric: one for one in differences if one.label == names[answer]},
        )
        for answer, runs in parts.items()
    ]


def _cell(effect: Effect, metric: str) -> Cell:
    """The change against the base; of the base itself its own number."""
    change = effect.changes.get(metric)
    if change is None:
        return replace(effect.summary.cell(metric), bold=False)
    if not math.isfinite(change.mean):
        return Cell("no pair")
    margin = None if change.interval is None else change.interval[1] - change.mean
    return Cell(signed(change.mean), margin, bold=change.clear)
