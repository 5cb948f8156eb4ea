"""What a site's answer to a round says about small groups: rows, Tallies and dual steps from which they are hidden.

`fewest` is the fewest rows of a (label, group) cell that the site sends.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ffalm.algorithms import Measure
from ffalm.data.types import Examples
from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Message
from ffalm.engines.remote.round_messages import update_message
from ffalm.engines.server import ClientUpdate, own_step
from ffalm.fairness import Tally
from ffalm.federate.disclosure import spread, withheld, without
from ffalm.federate.terms import SiteTerms


def compared(rows: Examples, terms: SiteTerms, fewest: int) -> Examples:
    """The training rows; for gradients of disparities, rows of small groups count as of no group.

    Then the answer is that of a site without any group that has a withheld cell.
    """
    task = terms.task
    if not terms.contender.algorithm.gradients:
        return rows
    hidden = withheld(rows.counts(task).cpu(), fewest, total_known=True).any(0)
    group = torch.where(hidden.to(rows.group.device)[rows.group], task.groups, rows.group)
    return Examples(rows.x, rows.y, group)


def stepping(update: ClientUpdate, counts: Tensor, terms: SiteTerms, fewest: int) -> ClientUpdate:
    """The update with the Tally for this site's dual step, in which small groups or cells are hidden.

    If the step reveals gaps between the means of groups, groups with too few rows count as absent. If it reveals
    sums of single groups, the rows of small cells are spread over these cells. So they are if it reveals gaps
    between cells; then cells with too few rows also count as absent, or a site without a group would reveal a gap
    between labels.
    """
    algorithm, tally = terms.contender.algorithm, update.tally
    if tally is None or not algorithm.needs_only_sums:
        return update
    if algorithm.tells_gaps:
        small = withheld(torch.minimum(counts.cpu().sum(0), tally.count.sum(0)), fewest)
        return replace(update, tally=without(tally, small.expand_as(tally.loss)))
    together = spread(tally, _hidden(tally, counts, fewest))
    if algorithm.tells_gaps_of_cells:
        together = without(together, withheld(torch.minimum(counts.cpu(), tally.count), fewest))
    return replace(update, tally=together)


def disclosed_update(update: ClientUpdate, sent: Snapshot, counts: Tensor, terms: SiteTerms, fewest: int) -> Message:
    """The answer without numbers over too few training rows.

    The site takes the dual step itself and sends the state, not its Tally; an algorithm that needs the Tally gets
    it without small cells. If there are small cells, the mean loss is withheld too: together with the state or
    the Tally it can reveal the loss of a single row, and a few such losses reveal the row.
    """
    algorithm, tally = terms.contender.algorithm, update.tally
    if algorithm.measure is Measure.NOTHING or tally is None:
        return update_message(replace(update, tally=None), keeps_own=True)
    hidden = _hidden(tally, counts, fewest)
    if algorithm.needs_only_sums:
        state = own_step(algorithm, sent, tally, int(counts.sum()), terms.task)
        update = replace(update, tally=None, state=state)
    else:
        update = replace(update, tally=without(tally, hidden))
    if bool(hidden.any()):
        update = replace(update, loss=None, negative=None)
    message = update_message(update, keeps_own=True)
    if "tally" in message.tensors:
        message.tensors["tally"]["withheld"] = hidden
    return message


def _hidden(tally: Tally, counts: Tensor, fewest: int) -> Tensor:
    """The withheld cells of training rows: those that are small among all rows or among the rows in the Tally."""
    return withheld(counts.cpu(), fewest, total_known=True) | withheld(tally.count.cpu(), fewest, total_known=True)
