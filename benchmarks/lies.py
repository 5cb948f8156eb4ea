"""What lying sites send, for the simulated attacks (`attacks.py`, `attacked_histograms.py`) and, since a site lies with
the same functions in processes of its own (`lying_site.py`), for the real ones (`attacked_federation.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ffalm.data.types import Examples
from ffalm.engines import Snapshot
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import ScoreHistogram

ATTACK_FILE = "attack.txt"  # in the folder of a real site that lies: the name of its lie
CLAIM = 10**6
TIMES = {"update x -9": -9.0, "update x -1": -1.0, "rows x 1e6, update x -1": -1.0, "unfair labels x 5": 5.0}
DUALS = {"dual +1e6": 1e6, "dual -1e6": -1e6}
LOSSES = {"training losses +1e6": 1e6, "training losses -1e6": -1e6}
ALONE = (*TIMES, *DUALS, *LOSSES)
"""Lies for which a site needs nothing but its own rows."""
SMALL = {"a little is enough": 1.5, "a little is enough, z = 0.5": 0.5}
IN_RANGE = "unfair, within the honest range"
INFORMED = (*SMALL, IN_RANGE)
"""Lies of sites that know the round's honest answers."""
SCORES = {"groups far apart": None, "1 logit": 16, "1/4 logit": 4}
"""By how many bins the first group's scores are told higher and the others' lower; None for as far as can be."""


def trained_rows(attack: str, rows: Examples) -> Examples:
    """The rows that a liar trains on: with unfair labels the label is the group."""
    return Examples(rows.x, rows.group.clone(), rows.group) if attack.startswith("unfair") else rows


def claimed(attack: str, counts: Tensor) -> Tensor:
    """The training rows that a liar says to have."""
    return counts * CLAIM if attack.startswith("rows") else counts


def measured(attack: str, update: ClientUpdate) -> ClientUpdate:
    """An update with false training losses of the first group, before the site takes the dual step by them."""
    if attack not in LOSSES or update.tally is None:
        return update
    loss = update.tally.loss.clone()
    loss[..., 0] += LOSSES[attack]
    return replace(update, tally=replace(update.tally, loss=loss))


def told(attack: str, update: ClientUpdate, sent: Snapshot) -> ClientUpdate:
    """The false answer of a site that knows its own rows alone, in the place of the true one."""
    if attack in TIMES:
        by = TIMES[attack]
        model = {name: value + by * (update.model[name] - value) for name, value in sent.model.items()}
        return replace(update, model=model)
    if attack in DUALS:
        state = dict(update.state or {})
        return replace(update, state={**state, "dual": torch.full_like(state["dual"], DUALS[attack])})
    return update


def informed(attack: str, update: ClientUpdate, honest: Sequence[ClientUpdate]) -> ClientUpdate:
    """The false answer of a site that knows all honest answers of the round and stays among them, entry by entry.

    A little is enough (Baruch et al., 2019): mean - z * standard deviation, of the model and of the duals. The unfair
    one sends the honest answer that is farthest towards a model trained on unfair labels, `update`, and of the duals
    the one that asks for the least fairness: Fang et al. (2020) for trimmed means, with an aim of our own.
    """

    def false(answers: Sequence[Tensor], aim: Tensor) -> Tensor:
        many = torch.stack(list(answers))
        if attack in SMALL:
            return many.mean(0) - SMALL[attack] * many.std(0)
        return torch.where(aim > many.mean(0), many.amax(0), many.amin(0))

    model = {name: false([one.model[name] for one in honest], value) for name, value in update.model.items()}
    duals = [(one.state or {})["dual"] for one in honest]
    dual = false(duals, torch.zeros_like(duals[0]))
    return replace(update, model=model, state={**(update.state or {}), "dual": dual})


def told_scores(true: ScoreHistogram, bins: int | None, times: int = 1) -> ScoreHistogram:
    """A lie about scores that fits the agreed counts of cells."""
    counts = torch.zeros_like(true.counts)
    for group in range(true.groups):
        own, sign = true.counts[..., group], 1 if group == 0 else -1
        if bins is None:
            counts[480 if sign > 0 else 30, ..., group] = own.sum(0)
        else:
            places = (torch.arange(len(own)) + sign * bins).clamp(0, len(own) - 1)
            counts[..., group].index_add_(0, places, own)
    return replace(true, counts=counts * times)
