"""`ffalm.blind`: repair a trained model for a fairness target without the group at prediction.

A second federated model with (favourable or not, group) as its label estimates P(label, group | x); the
rule of `targets.blind` weighs it against the trained model's own probability.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Unpack

from numpy.typing import NDArray
from torch import Tensor

from ffalm.algorithms import FedAvg
from ffalm.data.types import Examples
from ffalm.errors import UserError, require, short_repr
from ffalm.federation import Federation
from ffalm.run_settings import RunSettings, Training
from ffalm.runs import Result
from ffalm.settings import with_keywords
from ffalm.simulation import RunKeywords, rebuilt, seed_of, simulate
from ffalm.system.torch_modes import usual_modes
from ffalm.targets.blind import fit_blind
from ffalm.targets.judged_rule import JudgedRule
from ffalm.targets.predicted_rows import PredictedRows, cell_shares, cells_of, known_share
from ffalm.targets.stored_rules import ScoredRule, StoredRules
from ffalm.targets.target import DEFAULT, Target
from ffalm.trained_models.trained_model import TrainedModel


@dataclass(frozen=True, repr=False)
class GroupModel:
    """P(label, group | x), trained over a federation; it may serve several results and targets."""

    network: TrainedModel
    groups: int
    accuracy: float  # share of the held-out rows of compared groups whose group is the most likely of these
    epsilon: float | None = None  # the privacy budget that its training spent

    def cells(self, x: Tensor) -> Tensor:
        """P(not favourable / favourable, group | x), of shape (row, 2, group)."""
        return cells_of(self.network.logits(x), self.groups)


@dataclass(frozen=True, repr=False)
class BlindAnswer(JudgedRule):
    """A model with its blind rule, before and after on the same rows."""

    model: TrainedModel
    group_model: GroupModel

    def predict(self, x: Any) -> NDArray[Any]:
        """The label that is predicted for each row; no group is needed."""
        return self.model.named(self.decide(x))

    def decide(self, x: Any) -> Tensor:
        """The number of the label that `predict` names, for each row, as in the federation's own rows."""
        rows = self.model.features(x)
        favourable = self.model.task.favourable
        return self.rule.predict(self.model.logits(rows), self.group_model.cells(rows), favourable)

    def __repr__(self) -> str:
        metrics = ["accuracy", *(bound.metric for bound in self.target.bounds)]
        shown = ", ".join(f"{name} {self.before[name]:.4f} -> {self.after[name]:.4f}" for name in metrics)
        return f"BlindAnswer({self.target}: {self.verdict}, {shown})"


@with_keywords(RunSettings, Training)
def group_model(federation: Federation, *, seed: int = 0, **settings: Unpack[RunKeywords]) -> GroupModel:
    """Train P(label, group | x) over a federation by FedAvg, with the keywords of `simulate`."""
    rows = held_out(federation)
    crossed = federation.with_group_labels()
    with usual_modes():
        result = simulate(FedAvg(), crossed, seed=seed_of(seed), **settings)
        network = rebuilt(result.state_dict, crossed, settings)
        task = federation.task
        logits = network.logits(rows.x)
        known = PredictedRows(logits, cells_of(logits, task.groups), rows.y, rows.group, task).known()
        share = known_share(known, rows.counts(task), task.compared)
        return GroupModel(network, task.groups, share, result.epsilon)


@dataclass(frozen=True, eq=False)
class BlindModel:
    """A trained model and a model of the groups, to which blind rules for several targets can be fitted."""

    network: TrainedModel
    groups: GroupModel
    federation: Federation

    def fit(self, target: Target, confidence: float | None = None) -> BlindAnswer:
        """The rule that is best on the held-out rows, scored once on test rows."""
        stored = self.stored(target, confidence)
        judged = stored.judged(target, stored.rules[0].fitted.level)
        notes = (*judged.notes, *_spent(self.groups))
        return BlindAnswer(**vars(replace(judged, notes=notes)), model=self.network, group_model=self.groups)

    def stored(self, target: Target, confidence: float | None = None) -> StoredRules:
        """The same rule with its counts, as a run's folder keeps it."""
        federation, task = self.federation, self.federation.task
        rows, scored = self._rows, self._scored
        offset = rows.offset(target)
        held_out = rows.held_out(offset)
        shares = cell_shares(federation.counts().sum(0), task.favourable)
        fitted = fit_blind(
            held_out.count, held_out.totals(), shares, target, task.favourable, confidence, offset, task.excluded
        )
        predicted = fitted.rule.predict(scored.logits, scored.cells, task.favourable)
        test = None if federation.test is None else scored.tally(predicted)
        before = scored.tally(scored.logits.argmax(-1))
        return StoredRules(target, task, self.groups.accuracy, before, (ScoredRule(fitted, test),))

    @cached_property
    def _rows(self) -> PredictedRows:
        return self._predicted(held_out(self.federation))

    @cached_property
    def _scored(self) -> PredictedRows:
        return self._rows if self.federation.test is None else self._predicted(self.federation.test)

    def _predicted(self, rows: Examples) -> PredictedRows:
        logits, cells = self.network.logits(rows.x), self.groups.cells(rows.x)
        return PredictedRows(logits, cells, rows.y, rows.group, self.federation.task)


@with_keywords(RunSettings, Training)
def blind(
    trained: Result | Mapping[str, Tensor],
    federation: Federation,
    target: str | Target = DEFAULT,
    *,
    confidence: float | None = None,
    groups: GroupModel | None = None,
    seed: int | None = None,
    **settings: Unpack[RunKeywords],
) -> BlindAnswer:
    """Bring a trained model within a fairness target without the group at prediction.

    `trained` is what `simulate` gave on this federation with these `settings`, or the `state_dict` of such a model. The
    same settings and `seed` (by default the result's) train the model of the groups, unless `groups` is one that
    `group_model` has trained. The rule is fitted to the federation's validation part and scored once on its test part;
    `confidence` is as in `Study.answer`. Warns if the rule costs more than 3 points of accuracy, is degenerate or is
    not within the target.
    """
    aim = Target.parse(target)
    own_seed = trained.seed if isinstance(trained, Result) else 0
    weights = trained.state_dict if isinstance(trained, Result) else trained
    require(
        isinstance(weights, Mapping), f"Give a Result or the weights of a model by name; got {short_repr(trained)}."
    )
    require(len(weights) > 0, "This run trained a model for each client, and a blind rule is for one model.")
    held_out(federation)
    with usual_modes():
        network = rebuilt(weights, federation, settings)
        groups = groups or group_model(federation, seed=own_seed if seed is None else seed, **settings)
        answer = BlindModel(network, groups, federation).fit(aim, confidence)
    if answer.warning:
        warnings.warn(answer.warning, stacklevel=2)
    return answer


def held_out(federation: Federation, what: str = "A blind rule is fitted to") -> Examples:
    """The validation rows of a federation, on which choices are made; `what` begins the message if there are none."""
    require(
        isinstance(federation, Federation),
        f"Give a Federation, such as ffalm.load(...) returns; got {type(federation).__name__}.",
    )
    if federation.validation is None:
        raise UserError(f"{what} held-out rows, and this federation has none: give it a validation part.")
    return federation.validation


def _spent(groups: GroupModel) -> tuple[str, ...]:
    if groups.epsilon is None:
        return ()
    return (f"Training the model of the groups spent a privacy budget of its own: {groups.epsilon:.2f}.",)
