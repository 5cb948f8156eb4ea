"""Which open choice moves which number: one answer changed at a time, compared with the base seed by seed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ffalm.errors import require
from ffalm.outcome import Outcome, StudyOutcome
from ffalm.report.summary import Change, Row, changes, summarise
from ffalm.report.tables import HEADS, mean_text, metric_name, percent, seeds_text, signed, spread_text
from ffalm.reproduce.choices import CHOICES, Choice, answers, conflict
from ffalm.reproduce.comparison import formed
from ffalm.reproduce.paper import METRICS
from ffalm.reproduce.request import Entry, Request
from ffalm.reproduce.sheets import Cell, Section, Sheet
from ffalm.reproduce.strength import PULL_HEADS, PULL_TITLE, Strength, pull_row, strength
from ffalm.reproduce.studies import Runner, carried_out

ALPHA = 0.3
_FORMS = {f"metric: {form}": form for form in ("joint", "piecewise")}
_ORDER = ("ffalm", "fairfed", "fpfl")
CSV_COLUMNS = ("algorithm", "choice", "answer", "metric", "mean", "difference", "low", "high", "n", "n_diverged")


@dataclass(frozen=True)
class Variant:
    """One answer other than the base's, and the request that asks for it."""

    choice: Choice
    answer: str
    request: Request
    entry: Entry

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.choice.name}: {self.answer}"


@dataclass(frozen=True)
class Effect:
    """What a variant came to, and its changes against the base by metric; the base itself has none."""

    algorithm: str
    label: str
    row: Row
    strength: Strength
    changes: dict[str, Change]

    @property
    def name(self) -> str:
        """The label, and whether it is what the others are compared with."""
        return self.label if self.changes else f"{self.label}, base"


def base_request(request: Request) -> Request:
    """The request with one schedule, the first given, since one answer is changed at a time."""
    return replace(request, chosen={**request.chosen, "schedule": answers(request.chosen["schedule"])[0]})


def variants(base: Request, data: str) -> list[Variant]:
    """Every other answer to every question that the data set has, less what comes to the base or an earlier one."""
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
        parts = {entry.label: origin}
        for variant in mine:
            parts[variant.label] = runs[variant.request.folder_name(data), variant.entry.key]
        if algorithm == "ffalm":
            parts |= {label: [formed(outcome, form) for outcome in origin] for label, form in _known_forms(origin)}
        effects += _effects(algorithm, parts)
    return effects


def sheet(effects: Sequence[Effect], title: str) -> Sheet:
    """The base's numbers, and below them by how much each answer moves them; clear changes in bold."""
    heads = ["Choice", *(HEADS[metric] for metric in METRICS), "Seeds"]
    sections: dict[str, list[list[Cell]]] = {}
    for effect in effects:
        fill = _change_cell if effect.changes else _base_cell
        row = [Cell(effect.name), *(fill(effect, metric) for metric in METRICS), Cell(seeds_text(effect.row))]
        sections.setdefault(effect.algorithm, []).append(row)
    return Sheet(title, heads, [Section("", rows) for rows in sections.values()])


def pull(effects: Sequence[Effect]) -> Sheet:
    """How hard the constraint pulled under each answer."""
    kept = [effect for effect in effects if effect.label not in _FORMS]
    return Sheet(PULL_TITLE, PULL_HEADS, [Section("", [pull_row(effect.name, effect.strength) for effect in kept])])


def reading(effects: Sequence[Effect]) -> list[str]:
    """Which choice moves which number, in sentences."""
    told: list[str] = []
    compared = 0
    for metric in METRICS:
        name = "accuracy" if metric == "accuracy" else metric_name(metric)
        found = [(effect, effect.changes[metric]) for effect in effects if metric in effect.changes]
        compared += sum(change.interval is not None for _, change in found)
        clear = sorted((pair for pair in found if pair[1].clear), key=lambda pair: -abs(pair[1].mean))
        moved = [f"{effect.label} ({signed(change.mean)} points)" for effect, change in clear]
        told.append(f"{name} is clearly moved by {', '.join(moved)}." if moved else f"No choice clearly moved {name}.")
    if compared:
        told.append(
            f"Clear means that the 95 % interval over paired seeds leaves out zero; of {compared} such comparisons "
            f"about {0.05 * compared:.0f} would be clear by chance alone."
        )
    else:
        told.append("With one seed there is no interval, hence nothing can be called clear: run more seeds.")
    return told


def to_csv(effects: Sequence[Effect]) -> str:
    """One line for every answer and metric, as fractions in full precision; the base has no difference."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for effect in effects:
        choice, _, answer = effect.label.partition(": ") if effect.changes else ("base", "", effect.label)
        for metric in METRICS:
            cell, change = effect.row.cells[metric], effect.changes.get(metric)
            low, high = (change.interval or (None, None)) if change else (None, None)
            gap = change.mean if change and math.isfinite(change.mean) else None
            mean = cell.mean if cell.n else None
            named = (effect.algorithm, choice, answer, metric)
            writer.writerow((*named, mean, gap, low, high, cell.n, effect.row.diverged))
    return text.getvalue()


def _same(base: Request, changed: Request, data: str, algorithm: str) -> bool:
    """Whether two requests ask for the same runs of an algorithm, whatever the runs are called."""
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
        study = carried_out(request, out, run, data, [ALPHA], list(entries.values()))
        for key, entry in entries.items():
            found[folder, key] = [outcome for outcome in study.outcomes if outcome.label == entry.label]
    return found


def _known_forms(runs: Sequence[Outcome]) -> list[tuple[str, str]]:
    """The other forms of the metrics that all runs have, each with its label; older runs kept no counts."""
    counted = all(run.confusion is not None for run in runs)
    return [(label, form) for label, form in _FORMS.items() if counted or form != "piecewise"]


def _effects(algorithm: str, parts: dict[str, list[Outcome]]) -> list[Effect]:
    """One effect a part, each against the first."""
    relabelled = [replace(outcome, label=label) for label, runs in parts.items() for outcome in runs]
    study = StudyOutcome("", {}, {}, [], relabelled)
    moved = changes(study)
    rows = {row.label: row for row in summarise(study)}
    return [
        Effect(algorithm, label, rows[label], strength(runs), {one.metric: one for one in moved if one.label == label})
        for label, runs in parts.items()
    ]


def _base_cell(effect: Effect, metric: str) -> Cell:
    cell = effect.row.cells[metric]
    return Cell(mean_text(effect.row, cell), spread_text(cell))


def _change_cell(effect: Effect, metric: str) -> Cell:
    change = effect.changes[metric]
    if not math.isfinite(change.mean):
        return Cell("no pair")
    margin = "" if change.interval is None else f"± {percent(change.interval[1] - change.mean)}"
    return Cell(signed(change.mean), margin, change.clear)
