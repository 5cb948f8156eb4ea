"""The model card of a trained model in Markdown, from stored facts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ffalm.fairness.intervals import wilson
from ffalm.fairness.tally import Tally
from ffalm.report.audit_report import ends_text, metric_text
from ffalm.report.rendering import markdown, to_markdown
from ffalm.report.tables import Cell, Column, Section, Table, row
from ffalm.trained_models.model_facts import ModelFacts

#: A text that every card contains.
CARD_MARK = "`ffalm predict FOLDER "
_TITLES = {
    "accuracy": "Accuracy",
    "dpd": "Demographic parity difference (DPD)",
    "eod": "Equal opportunity difference (EOD)",
    "equalized_odds": "Equalised odds difference",
    "impact_ratio": "Impact ratio",
    "accuracy_parity": "Accuracy parity difference",
    "worst_group_accuracy": "Worst group's accuracy",
}
_PARTS = {"test": "test", "validation": "held-out (the thresholds were fitted to them)"}
_TOO_FEW = "The target is met in the sample; the rows are too few to say so with 95 % confidence."
_UNTESTED = "The target is met on the rows that the thresholds were fitted to; no test rows confirm it."


@dataclass(frozen=True)
class ModelUse:
    """How a model is used."""

    takes: str  # what it is given
    thresholds: str  # how it decides
    group: str  # the column or columns of groups
    by_group: bool  # whether thresholds differ by it
    architecture: Mapping[str, Any]
    guarantee: str | None  # of differential privacy
    seen: str = ""  # the columns of groups among the features
    images: bool = False  # whether it is given image files


def card(facts: ModelFacts, use: ModelUse) -> str:
    """The card."""
    task = facts.task
    parts = [
        f"# {markdown(facts.title)}",
        *_use(facts, use),
        "## Training data",
        _listed(
            f"Data: {task['data']}",
            "" if facts.clients is None else f"{facts.clients} clients",
            "" if facts.training_rows is None else f"{facts.training_rows:,} training rows",
            f"Groups compared: {task['groups']}",
            *facts.notes,
        ),
        *_metrics(facts),
        *_target(facts),
        "## Privacy",
        "Trained without differential privacy: the weights may reveal single training rows."
        if use.guarantee is None
        else f"Trained with {use.guarantee}.",
        "## Limits",
        _limits(facts, use),
        "## How it was made",
        _listed(
            f"{facts.algorithm}, seed {facts.seed}, {facts.rounds} rounds",
            f"Architecture: {_architecture(use.architecture)}",
            ", ".join(f"{name} {version}" for name, version in facts.versions.items()),
        ),
    ]
    if facts.command:
        parts.append(f"````bash\n{facts.command}\n````")  # as it was given: quotes and < are not escaped
    if facts.settings:
        rows = [row(name, value) for name, value in facts.settings.items()]
        parts.append(to_markdown(Table("", [Column("Setting"), Column("Value")], [Section(rows)])).rstrip())
    return "\n\n".join(parts) + "\n"


def _architecture(plain: Mapping[str, Any]) -> str:
    lists = {name: value if isinstance(value, list | tuple) else [value] for name, value in plain.items()}
    settings = "; ".join(f"{name} {', '.join(map(str, own))}" for name, own in lists.items() if name != "name")
    return f"{plain['name']} ({settings})" if settings else str(plain["name"])


def _use(facts: ModelFacts, use: ModelUse) -> list[str]:
    task = facts.task
    needs = (
        f"Predictions need each row's {use.group}, since thresholds differ between groups; rows without one get a "
        "single threshold"
        if use.by_group
        else f"The group ({use.seen}) is a feature, so predictions need it"
        if use.seen
        else "Predictions do not need the group"
    )
    return [
        "## Use",
        _listed(
            f"Predicts {task['label']}; the favourable outcome is {task['favourable']}",
            f"Takes {use.takes}",
            f"Decides by {use.thresholds}. {needs}",
        ),
        f"{CARD_MARK}{'IMAGES' if use.images else 'new.csv'}`, or `ffalm.load_model(FOLDER).predict(data)` in Python"
        f"{_naming_the_group(use)}.",
    ]


def _naming_the_group(use: ModelUse) -> str:
    """How to give the groups if thresholds differ by group."""
    if not use.by_group:
        return ""
    if use.images:
        return ", only there with `group=[...]` for the group of each image: without it the target need not hold"
    return ", with `--group COLUMN` or `group=` for the column of groups: without it the target need not hold"


def _metrics(facts: ModelFacts) -> list[str]:
    if facts.counts is None:
        return ["## Metrics", "No rows were scored, so its accuracy and fairness are not known."]
    tally = Tally.of_counts(facts.counts, facts.excluded)
    metrics = tally.metrics(facts.favourable)
    noisy = facts.epsilon is not None
    rows = []
    for name, title in _TITLES.items():
        low, high = (math.nan, math.nan) if noisy else tally.interval(name, 0.95, facts.favourable)
        rows.append(row(title, metric_text(name, metrics[name]), ends_text(name, low, high)))
    columns = [Column("Metric"), Column("Value"), Column("95 % interval")]
    scored = f"{int(tally.count.sum()):,} {_PARTS[facts.part]} rows, with the decisions described above."
    return [
        "## Metrics",
        scored,
        to_markdown(Table("", columns, [Section(rows)])).rstrip(),
        to_markdown(_groups(tally, facts)).rstrip(),
    ]


def _groups(tally: Tally, facts: ModelFacts) -> Table:
    """Each group's rates with Wilson's intervals."""
    rows = []
    for place, name in enumerate(facts.group_names):
        counts = tally.confusion[..., place].double()
        total, wanted = float(counts.sum()), float(counts[:, facts.favourable].sum())
        chosen = counts[facts.favourable]
        shares = [
            (float(chosen.sum()), total),
            (float(chosen[facts.favourable]), wanted),
            (float(counts.diagonal().sum()), total),
        ]
        cells = [_cell(hits, trials, facts.epsilon is None) for hits, trials in shares]
        compared = place < len(facts.group_names) - facts.excluded
        rows.append(row(name if compared else f"{name} (not compared)", total, *cells))
    favourable = facts.task["favourable"]
    heads = (f"predicted “{favourable}”", f"true “{favourable}” found", "accuracy")
    columns = [Column("Group"), Column("rows", "count"), *(Column(head, "percent", 1) for head in heads)]
    caption = f"in percent, with 95 % intervals; found: in percent of those whose true outcome is “{favourable}” (TPR)"
    return Table("Groups", columns, [Section(rows)], caption)


def _cell(hits: float, trials: float, interval: bool) -> Cell:
    return Cell(hits / trials if trials else math.nan, interval=wilson(hits, trials) if trials and interval else None)


def _target(facts: ModelFacts) -> list[str]:
    if facts.target is None:
        return ["## Fairness target", "None was set."]
    text = f"{facts.target}: {facts.verdict or 'not known'}."
    ends = [f"{name} {value:.3f}" for name, value in facts.ends.items() if not math.isnan(value)]
    if ends:
        text += f" One-sided 95 % confidence bounds: {', '.join(ends)}."
    return ["## Fairness target", text]


def _limits(facts: ModelFacts, use: ModelUse) -> str:
    limits = [
        "The numbers are of rows like those of training; where people, prices or policies change, measure again "
        "with ffalm audit.",
        "Gaps between groups that are not named here are not known.",
        "A category that no training row had counts as none of the known ones.",
    ]
    if facts.target is None:
        limits.append("No fairness target was set, so nothing bounds the gaps.")
    elif facts.verdict == "met in the sample":
        limits.append(_TOO_FEW if facts.part == "test" else _UNTESTED)
    elif facts.verdict == "cannot be judged":
        limits.append("Whether the fairness target is met cannot be judged, since some group lacks the rows.")
    elif facts.verdict == "not met":
        limits.append("The fairness target is not met.")
    if use.seen:
        limits.append(f"The group ({use.seen}) is a feature of the model, which some uses forbid by law.")
    if use.by_group:
        limits.append("Thresholds by group treat people differently by group, which some uses forbid by law.")
    return _listed(*limits)


def _listed(*lines: str) -> str:
    return "\n".join(f"- {markdown(line).rstrip('.')}." for line in lines if line)
