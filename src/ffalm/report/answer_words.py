"""Names of an answer's rows, model, thresholds and runs in sentences and tables."""

from __future__ import annotations

from ffalm.targets.answer import Answer, Candidate
from ffalm.targets.target import TITLES


def choice_rows(answer: Answer) -> str:
    """The rows that thresholds were fitted to and the choice was made on."""
    return "held-out and training rows" if answer.training_rows else "held-out rows"


def scored_rows(answer: Answer) -> str:
    """The rows that the answer's scores are of."""
    return "test rows" if answer.best.test is not None else choice_rows(answer)


def name_of(candidate: Candidate) -> str:
    """An algorithm with its thresholds."""
    return f"{candidate.label}, {TITLES[candidate.kind]}"


def name_of_answer(answer: Answer) -> str:
    """The chosen algorithm with its thresholds, or those of sites."""
    chosen = answer.chosen
    return name_of(chosen) if answer.together is None else f"{chosen.label}, {own_of_sites(answer)}"


def own_of_sites(answer: Answer) -> str:
    """Words for thresholds of sites, with those that apply at the other sites."""
    elsewhere = "" if all(one.own for one in answer.sites) else f" (elsewhere {TITLES[answer.chosen.kind]})"
    return f"sites' own thresholds{elsewhere}"


def over_seeds(answer: Answer) -> str:
    """Which runs the cost in accuracy is of; empty if there is only one."""
    if len(answer.chosen.runs) == 1:
        return ""
    return f"mean over {len(answer.chosen.runs)} seeds" if answer.together is None else f"seed {answer.best.seed}"


def used(candidate: Candidate) -> str:
    """An algorithm with its thresholds, for a sentence."""
    between = {"none": " ", "accurate": " with its "}.get(candidate.kind, " with ")
    return f"{candidate.label}{between}{TITLES[candidate.kind]}"


def used_answer(answer: Answer) -> str:
    """The chosen algorithm with its thresholds, or those of sites, for a sentence."""
    if answer.together is None:
        return used(answer.chosen)
    return f"{answer.chosen.label} with {own_of_sites(answer)}"
