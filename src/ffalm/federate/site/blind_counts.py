"""What a site counts for a blind rule (`targets.blind`), once the model of the groups is trained.

The search for a rule asks only for sums over rows. A site gets both models once ("predict"), applies them to its
held-out and test rows, stores the outputs in its own folder, and reports by (label, group) for how many held-out rows
the model of the groups predicts their own group. Then ("count") it reports how many rows of each label and group the
rules on a line predict favourable. Cells under `min_group` rows are 0, as in score histograms. It answers a bounded
number of questions, only such as the search asks, about one pair of models in a run, of which the first is the model
whose scores it sent. Of test rows it reports counts for single rules, never for a line of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.engines.jobs import Model
from ffalm.engines.remote.message import Message, understood
from ffalm.errors import require_public
from ffalm.fairness.histograms import AS_TRAINED, edge_value
from ffalm.federate.answer_ledger import AnswerLedger, digest
from ffalm.federate.disclosure import withheld
from ffalm.federate.site.cache import Parts
from ffalm.federate.terms import SiteTerms
from ffalm.targets.blind import known_question, most_questions
from ffalm.targets.predicted_rows import PredictedRows
from ffalm.targets.target import Target

_PER_LOGIT = round(1 / edge_value(AS_TRAINED + 1))  # edges of score histograms
_STARTS = 2  # complete searches that a site answers: one that was stopped may go on differently without a site


@dataclass(frozen=True)
class CountQuestion:
    """Rules `weights + step * line` whose favourable predictions are to be counted."""

    weights: Tensor
    line: Tensor
    steps: Tensor
    part: str  # "validation" or "test"
    offset: float
    number: int  # of the question; a secure search numbers its questions

    @classmethod
    def read(cls, asked: Message, terms: SiteTerms, shares: Tensor) -> CountQuestion:
        """The question in a message; raises `PublicError` if the search asks no such question."""
        with understood():
            rule = asked.tensors["rule"]
            weights, line, steps = (rule[name].double() for name in ("weights", "line", "steps"))
            part, offset = str(asked.facts["part"]), float(asked.facts["offset"])
            found = cls(weights, line, steps, part, offset, int(asked.facts.get("number", 0)))
        task = terms.task
        right = known_question(found.weights, found.line, found.steps, _target(terms), shares, task.excluded)
        require_public(
            right and _edge(found.offset) and found.part in ("validation", "test"),
            "The coordinator asks for counts that the search for a blind rule does not need.",
        )
        require_public(
            found.part == "validation" or not bool(found.line.any()),
            "The coordinator asks for test rows while it searches a rule: those only score single rules.",
        )
        return found

    def noted(self, ledger: AnswerLedger, terms: SiteTerms, shares: Tensor, under: dict[str, int]) -> str:
        """Note the question and return its purpose; raises `PublicError` if there were too many."""
        where = torch.tensor([self.offset, float(self.part == "test")], dtype=torch.float64)
        asked = {"rule": {"weights": self.weights, "line": self.line, "steps": self.steps, "where": where}}
        purpose = f"count {self.number}" if terms.secure is not None else f"count {digest(asked)[:16]}"
        ledger.question(f"offset {self.offset!r}", {}, most=("offset ", _STARTS))
        ledger.question(f"target {terms.target}", {}, most=("target ", _STARTS))  # each has lines of its own
        most = _STARTS * most_questions(_target(terms), shares, terms.task.excluded)
        ledger.question(purpose, asked, ("count ", most), under)
        return purpose

    def answer(self, outputs: Model, parts: Parts, terms: SiteTerms, min_group: int) -> Tensor:
        """Rows by (step, fallback, label, group) that each rule predicts favourable, with 0 in small cells."""
        rows, task = parts[self.part], terms.task
        own = PredictedRows(
            outputs[f"{self.part}.logits"], outputs[f"{self.part}.cells"], rows.y.cpu(), rows.group.cpu(), task
        )
        found = own.held_out(self.offset).count(self.weights, self.line, self.steps)
        return found.masked_fill(withheld(rows.counts(task).cpu(), min_group), 0)


def read_shares(asked: Message, terms: SiteTerms) -> Tensor:
    """P(not favourable / favourable, group) over the federation, from which the search's lines follow."""
    with understood():
        shares = asked.tensors["rule"]["shares"].double()
    right = shares.shape == (2, terms.task.groups) and bool(((shares >= 0) & (shares <= 1)).all())
    require_public(right, "The coordinator's question lacks the shares of labels and groups.")
    return shares


def told_groups(outputs: Model, parts: Parts, terms: SiteTerms, min_group: int) -> Tensor:
    """Held-out rows by (label, group) for which the model predicts their own group, with 0 in small cells."""
    rows, task = parts["validation"], terms.task
    own = PredictedRows(outputs["validation.logits"], outputs["validation.cells"], rows.y.cpu(), rows.group.cpu(), task)
    return own.known().masked_fill(withheld(rows.counts(task).cpu(), min_group), 0)


def _edge(offset: float) -> bool:
    """Whether an offset is an edge of score histograms."""
    return math.isfinite(offset) and edge_value(AS_TRAINED + round(offset * _PER_LOGIT)) == offset


def _target(terms: SiteTerms) -> Target:
    return Target.parse(str(terms.target))
