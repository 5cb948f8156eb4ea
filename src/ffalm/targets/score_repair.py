"""`ffalm.repair`: scores made anywhere, the thresholds that keep a fairness target, and what they cost.

Thresholds are fitted to calibration rows, which the model must not have been trained on, and judged on test rows where
there are any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ffalm.arrays import index_notes, named_column
from ffalm.data.category_lookup import distinct
from ffalm.data.encoding import FILL_OR_LEAVE_OUT, numbers
from ffalm.data.splits import split_rows
from ffalm.data.table import code_label
from ffalm.data.table_groups import spelled_alike
from ffalm.data.table_values import natural, place_of
from ffalm.errors import UserError, require, require_known, require_number, unknown
from ffalm.fairness import ScoreHistogram
from ffalm.fairness.calibration import calibration_bins, calibration_error
from ffalm.fairness.score_metrics import group_auc
from ffalm.targets.answer import Answer, Candidate, Scores, Verdict
from ffalm.targets.candidates import FinishedRun, answer_of
from ffalm.targets.rate_table import Costs
from ffalm.targets.repair import Repair
from ffalm.targets.score_bins import Array, Codes, ScoreBins, ScoredRows
from ffalm.targets.score_thresholds import ScoreThresholds, codes_of
from ffalm.targets.target import DEFAULT, Target
from ffalm.targets.target import Repair as RepairSetting

#: What `repair` may be.
REPAIRS: tuple[RepairSetting, ...] = ("single", "groups", "randomised")
_GIVEN = "the given rows"
_MOST_GROUPS = 200


@dataclass(frozen=True, eq=False)
class ScoredTable:
    """Rows with scores, and the names of their labels and groups."""

    rows: ScoredRows
    label_names: tuple[str, ...]  # the favourable one is the last
    group_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    what: str = "rows"  # for messages: the file

    @classmethod
    def of(cls, scores: Any, labels: Any, groups: Any, favourable: Any = None, what: str = _GIVEN) -> ScoredTable:
        """Columns of one length; a group may be missing. With more than two labels all but one are unfavourable."""
        columns = _columns(scores, labels, groups)
        unquoted = what.strip("'")  # its messages put the name of a file in quotation marks
        codes, label_names, notes = code_label(columns["labels"], favourable, unquoted)
        group_names = _group_names(columns["groups"], what)
        places = codes_of(columns["groups"], group_names)
        known = places >= 0
        apart = index_notes({"scores": scores, "labels": labels, "groups": groups})
        notes = (*apart, *notes, *spelled_alike(group_names))
        if len(label_names) > 2:
            notes = (*notes, f"All labels but {label_names[-1]!r} count as unfavourable: there is one score a row.")
        if not known.all():
            unknown_rows = f"{int((~known).sum()):,} rows have no group"
            notes = (*notes, f"{unknown_rows}: they get the single threshold and are left out of scores.")
        rows = ScoredRows(numbers(columns["scores"], FILL_OR_LEAVE_OUT), codes == len(label_names) - 1, places)
        return cls(rows, label_names, group_names, notes, what)

    def like(self, scores: Any, labels: Any, groups: Any, what: str = "the test rows") -> ScoredTable:
        """Other rows with the same labels and groups; a new group counts as unknown."""
        columns = _columns(scores, labels, groups)
        codes, values = distinct(columns["labels"])
        require(bool((codes >= 0).all()), f"The label is missing in some rows of {what}: leave those rows out.")
        for value in values:
            if place_of(value, self.label_names) < 0:
                raise unknown(f"label in {what}", value, self.label_names)
        favourable = np.array([place_of(value, self.label_names) == len(self.label_names) - 1 for value in values])
        places = codes_of(columns["groups"], self.group_names)
        rows = ScoredRows(numbers(columns["scores"], FILL_OR_LEAVE_OUT), favourable[codes], places)
        strange = int((places < 0).sum())
        note = f"{strange:,} test rows have no group known from the calibration rows: they are left out of scores."
        notes = index_notes({"test scores": scores, "test labels": labels, "test groups": groups})
        notes = (*notes, note) if strange else notes
        return ScoredTable(rows, self.label_names, self.group_names, notes, what)

    def take(self, rows: Codes) -> ScoredTable:
        """Some of the rows."""
        return ScoredTable(self.rows.take(rows), self.label_names, self.group_names, self.notes, self.what)

    def split(self, share: float, seed: int) -> tuple[Codes, Codes]:
        """Row numbers of calibration and test rows, stratified by label and group."""
        require(
            0 < require_number(share, "share of test rows") < 1,
            f"The share of test rows must be between 0 and 1; got {share:g}.",
        )
        strata = self.rows.favourable * (len(self.group_names) + 1) + self.rows.groups
        calibration, test = split_rows(strata, (1 - share, share), seed)
        return calibration, test


@dataclass(frozen=True, eq=False)
class RepairedScores:
    """Thresholds that keep a target, and how they fare."""

    answer: Answer  # every kind of thresholds that was tried, with its scores
    thresholds: ScoreThresholds
    label_names: tuple[str, ...]
    costs: Costs | None
    notes: tuple[str, ...]
    bins: ScoreBins
    parts: dict[str, ScoreHistogram]  # on these bins: of "calibration" and, if there are such rows, "test"
    probabilities: bool  # whether the scores are
    calibration_error: dict[str, float]  # expected, of each group; empty if scores are not probabilities

    def __repr__(self) -> str:
        return f"RepairedScores({self.target}: {self.verdict}, {self.thresholds})"

    def predict(self, scores: Any, groups: Any = None, ids: Any = None) -> Codes:
        """1 for the favourable outcome, else 0: see `ScoreThresholds.predict`."""
        return self.thresholds.predict(scores, groups, ids)

    @property
    def target(self) -> Target:
        """The target of the thresholds."""
        return self.answer.target

    @property
    def test(self) -> dict[str, float]:
        """Metrics on the test rows; empty if there are none."""
        return self.answer.test

    @property
    def calibration(self) -> dict[str, float]:
        """Metrics on the rows that the thresholds were fitted to."""
        return self.answer.best.validation.metrics

    @property
    def judged_on(self) -> str:
        """The rows that the verdict is about."""
        return "test" if "test" in self.parts else "calibration"

    @property
    def baseline(self) -> Candidate:
        """The best threshold for everybody, whatever its gaps."""
        return next(one for one in self.answer.candidates if one.kind == "accurate")

    @property
    def scored(self) -> Scores:
        """The repaired predictions on these rows, with confidence bounds at 95 %."""
        return self.answer.scored

    @property
    def before(self) -> Scores:
        """The best single threshold whatever its gaps, on the same rows."""
        return self.baseline.runs[0].scored

    @property
    def verdict(self) -> Verdict:
        """Whether the target holds on the test rows, or on the calibration rows if there are no others.

        Thresholds were fitted to the latter, so there it is "met in the sample" at most.
        """
        return self.answer.verdict

    @property
    def group_auc(self) -> dict[str, float]:
        """The area under the ROC curve within each group, which no threshold changes."""
        areas = group_auc(self.parts[self.judged_on])
        return dict(zip(self.thresholds.groups, areas.tolist(), strict=True))


def repair(
    scores: Any,
    labels: Any,
    groups: Any,
    *,
    target: str | Target = DEFAULT,
    repair: RepairSetting = "groups",
    confidence: float | None = None,
    cost_false_favourable: float = 1.0,
    cost_false_unfavourable: float = 1.0,
    favourable: Any = None,
    decision: float | None = None,
    test: Sequence[Any] | None = None,
    test_share: float | None = None,
    seed: int = 0,
) -> RepairedScores:
    """The best thresholds on any model's scores within a fairness target, such as "dpd <= 0.05".

    - `scores`, `labels`, `groups`: one entry per row that the model was not trained on. Higher scores are more
      favourable; `favourable` names the favourable label, 1 if labels are 0 and 1. Groups may be texts;
    - `repair`: "single" (one threshold for all), "groups" (one per group) or "randomised" (drawn by group), each with
      the simpler ones; `confidence` is as in `Study.answer`;
    - costs of a wrong favourable and a wrong unfavourable prediction; both 1 maximises accuracy;
    - `decision`: the score from which the model itself predicts the favourable label; 0.5 for probabilities, else 0;
    - `test`: scores, labels and groups of other rows to judge the result on, or `test_share`: the share of the rows to
      hold back for that.

    `result.predict(scores, groups)` applies the thresholds; `result.test` and `result.verdict` say what holds.
    """
    table = ScoredTable.of(scores, labels, groups, favourable)
    require(test is None or test_share is None, "`test` and `test_share` exclude each other: give one of them.")
    held: ScoredTable | None = None
    if test is not None:
        three = isinstance(test, list | tuple) and len(test) == 3
        require(three, "`test` takes three columns, scores, labels and groups, as a list.")
        held = table.like(*test)
    elif test_share is not None:
        calibration, rest = table.split(test_share, seed)
        table, held = table.take(calibration), table.take(rest)
    costs = Costs(cost_false_favourable, cost_false_unfavourable)
    return repair_table(table, held, Target.parse(target), repair, confidence, costs, decision)


def repair_table(
    table: ScoredTable,
    test: ScoredTable | None,
    target: Target,
    kind: RepairSetting,
    confidence: float | None,
    costs: Costs,
    decision: float | None,
) -> RepairedScores:
    """Fit, choose and judge."""
    require_known("repair", REPAIRS, kind)
    names, rows = table.group_names, table.rows
    probabilities = bool(rows.scores.min() >= 0 and rows.scores.max() <= 1)
    own, note = own_decision(rows.scores, probabilities, decision)
    bins = ScoreBins.of(rows.scores, rows.groups, own)
    weighed = None if costs == Costs() else costs
    parts = {"calibration": bins.histogram(rows, len(names))}
    if test is not None:
        parts["test"] = bins.histogram(test.rows, len(names))
        require(int(parts["test"].counts.sum()) > 0, f"No group of {test.what} is known from {table.what}.")
    scored = {"validation" if part == "calibration" else part: one for part, one in parts.items()}
    run = FinishedRun("scores", 0, None, "", scored)
    try:
        answer = answer_of([run], target, kind, names, confidence, weighed)
    except UserError as error:
        raise UserError(f"{table.what} cannot be repaired: {error}") from None
    thresholds = ScoreThresholds.of(Repair.from_plain(answer.best.repair), bins, names)
    notes = tuple(dict.fromkeys((note, *answer.notes, *table.notes, *(() if test is None else test.notes))))
    errors = _calibration_errors(table if test is None else test) if probabilities else {}
    return RepairedScores(answer, thresholds, table.label_names, weighed, notes, bins, parts, probabilities, errors)


def _calibration_errors(table: ScoredTable) -> dict[str, float]:
    """The expected calibration error of each group.

    From the scores and not from their bins: of scores with few values, the middle of a bin may be far from all of them.
    """
    rows = table.rows
    masks = (rows.groups == place for place in range(len(table.group_names)))
    errors = (calibration_error(calibration_bins(rows.scores[own], rows.favourable[own])) for own in masks)
    return dict(zip(table.group_names, errors, strict=True))


def _columns(scores: Any, labels: Any, groups: Any) -> dict[str, pd.Series]:
    given = {"scores": scores, "labels": labels, "groups": groups}
    columns = {name: named_column(one, name, name) for name, one in given.items()}
    sizes = [len(column) for column in columns.values()]
    require(
        len(set(sizes)) == 1 and sizes[0] > 0, f"Scores, labels and groups must have one entry per row; got {sizes}."
    )
    return columns


def _group_names(column: pd.Series, what: str) -> tuple[str, ...]:
    """The groups in natural order."""
    values = distinct(column)[1]
    where = f"The group column {str(column.name)!r} of {what}"
    require(bool(values), f"No group is known in {what}: there is nobody to compare.")
    require(len(values) > 1, f"{where} holds one group only, {values[0]!r}: there is nobody to compare with.")
    require(len(values) <= _MOST_GROUPS, f"{where} holds {len(values)} values, too many to be groups: merge some.")
    return tuple(sorted(values, key=natural))


def own_decision(scores: Array, probabilities: bool, given: float | None) -> tuple[float | None, str]:
    """The score from which the model predicts the favourable label, and the sentence that says what was assumed."""
    low, high = float(scores.min()), float(scores.max())
    require(low < high, "All scores are equal: no threshold can tell rows apart.")
    what = "lie within 0 and 1 and are taken as probabilities" if probabilities else "are taken as they are"
    if given is not None:
        given = require_number(given, "decision")
        note = f"The scores {what}; the model's own decision is score >= {given:g}, as given"
        if not low < given <= high:
            outcome = "unfavourable" if given > high else "favourable"
            note += f": the scores go from {low:g} to {high:g}, so that every row is predicted {outcome}"
        return given, f"{note}."
    if probabilities:
        return 0.5, f"The scores {what}, decided at 0.5."
    if low < 0 <= high:
        return 0.0, f"The scores are not probabilities and {what}, decided at 0."
    return None, (
        f"The scores, from {low:g} to {high:g}, {what}; the model's own decision is not known: set decision "
        "(--decision) to the score from which it predicts the favourable label."
    )
