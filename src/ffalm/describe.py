"""A finished study in plain values, for the report: what was asked, under which choices, and what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ffalm.config import StudyConfig, settings_of
from ffalm.outcome import Outcome, StudyOutcome
from ffalm.privacy import describe_guarantee
from ffalm.study import Layout, job_of, left_out, plans

_ASCENT_WARNING = 0.5


def describe(config: StudyConfig, spread: Layout, outcomes: Sequence[Outcome]) -> StudyOutcome:
    """Everything a report says about a study."""
    federation = job_of(config, plans(config)[0]).federation
    task = federation.task
    names = [contender.label for contender in config.contenders]
    return StudyOutcome(
        title=f"{' / '.join(names)} on {task.name}",
        task={
            "data": task.name,
            "label": task.label,
            "favourable": task.label_names[task.favourable],
            "groups": f"{task.group}: {', '.join(task.group_names)}",
        },
        choices=_choices(config, spread),
        clients=federation.summary(),
        outcomes=list(outcomes),
        notes=[
            *left_out(config),
            *federation.notes,
            *_warnings(outcomes),
            *_kept(config, outcomes),
            *_privacy(config, outcomes),
        ],
        group_names=task.group_names,
        favourable=task.favourable,
        duals_by_group=tuple(one.label for one in config.contenders if one.algorithm.duals_by_group),
    )


def _choices(config: StudyConfig, spread: Layout) -> dict[str, str]:
    """Every setting, in reading order, with the reason for the engine."""
    settings = settings_of(config)
    chosen: dict[str, str] = {}
    for section in ("data", "partition", "model", "training", "privacy"):
        for name, value in settings.get(section, {}).items():
            if section == "partition" and name == "alpha" and not config.partition.skewed:
                continue
            chosen[f"{section}: {name}"] = _text(value)
    chosen["model kept"] = "of the last round" if config.keep == "last" else "of the round best on validation"
    chosen["seeds"] = _text(settings["seeds"])
    for contender in config.contenders:
        values = dataclasses.asdict(contender.algorithm)
        chosen[contender.label] = ", ".join(f"{name} {_text(value)}" for name, value in values.items()) or "no settings"
    chosen["engine"] = f"{spread.engine.name} ({spread.reason})"
    return chosen


def _warnings(outcomes: Sequence[Outcome]) -> list[str]:
    """What a reader must know before believing a row: runs that stopped, and steps that raised a group's loss."""
    notes = [f"{outcome.diverged} (seed {outcome.seed})" for outcome in outcomes if outcome.diverged]
    for label in dict.fromkeys(outcome.label for outcome in outcomes):
        shares = [_ascent(outcome) for outcome in outcomes if outcome.label == label]
        high = [share for share in shares if share > _ASCENT_WARNING]
        if high:
            notes.append(
                f"{label}: in {len(high)} of {len(shares)} runs there was a round in which most local steps (up to "
                f"{max(high):.0%}) gave some row a negative weight, that is, raised its loss for the constraint's sake."
            )
    return notes


def _kept(config: StudyConfig, outcomes: Sequence[Outcome]) -> list[str]:
    """Which rounds' models were scored, where it is not the last of each run."""
    if config.keep == "last":
        return []
    found: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.diverged is None:
            found.setdefault(outcome.label, []).append(outcome.kept or len(outcome.history))
    return [
        f"{label}: scored is the model of {_span(rounds)} of {config.training.rounds}, the best on the validation part."
        for label, rounds in found.items()
    ]


def _span(rounds: Sequence[int]) -> str:
    low, high = min(rounds), max(rounds)
    return f"round {low}" if low == high else f"rounds {low} to {high}"


def _privacy(config: StudyConfig, outcomes: Sequence[Outcome]) -> list[str]:
    """What each algorithm's runs have told about any one client, and what that number does not cover."""
    if config.privacy is None:
        return []
    spent: dict[str, list[float]] = {}
    for outcome in outcomes:
        spent.setdefault(outcome.label, []).append(outcome.history[-1]["epsilon"])
    lines = [f"{label}: {describe_guarantee(max(found), config.privacy.delta)}" for label, found in spent.items()]
    covered = (
        "Epsilon is for each run by itself and for replacing all rows of one client. Not covered: how many rows of "
        "each label and group a client has, who took part, and scores on held-out rows. The noise of a simulation "
        "comes from its seed, so it shows what privacy costs and protects nobody."
    )
    return [*lines, covered]


def _ascent(outcome: Outcome) -> float:
    """The largest share, over rounds, of steps with a negative row weight."""
    return max((record.get("negative_weight_share", 0.0) for record in outcome.history), default=0.0)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
