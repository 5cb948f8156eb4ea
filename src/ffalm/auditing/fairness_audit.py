"""`ffalm.audit`: fairness of predictions or scores made anywhere, by group and by crossings of groups."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ffalm.arrays import index_notes, named_column
from ffalm.auditing.audit_facts import AuditFacts
from ffalm.auditing.audited_groups import AuditedGroups, AuditedRows, Codes
from ffalm.data.encoding import FILL_OR_LEAVE_OUT, numbers
from ffalm.data.group_settings import group_columns
from ffalm.data.table import code_label
from ffalm.data.table_codes import code_columns
from ffalm.data.table_files import as_frame, checked_columns, read_table
from ffalm.data.table_groups import spelled_alike
from ffalm.data.table_values import complete, listed_columns, pick, place_of
from ffalm.errors import UserError, require, require_number, short_repr, unknown
from ffalm.report.audit_report import gaps, groups, sentences, to_plain, write_page
from ffalm.report.rendering import sentences_html
from ffalm.targets.score_repair import own_decision

#: Groups of fewer rows are shown, and left out of gaps.
MIN_GROUP = 30
_MOST_COLUMNS = 4
_UNLABELLED = (
    "True outcomes were not given: only the shares predicted favourable are compared, and nothing is known about who "
    "was predicted rightly."
)


@dataclass(frozen=True, repr=False)
class Audit(AuditFacts):
    """What `audit` found, with the page and the plain values that `ffalm audit` gives."""

    def _repr_html_(self) -> str:
        tables = [table(self, one) for one in self.groupings for table in (gaps, groups)]
        return sentences_html((*sentences(self), *self.notes), *tables)

    def write_html(self, file: str | Path) -> Path:
        """Write one page that opens offline."""
        return write_page(self, file)

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values."""
        return to_plain(self)


def audit(
    data: Any = None,
    *,
    label: Any = None,
    group: Any,
    prediction: Any = None,
    score: Any = None,
    favourable: Any = None,
    decision: float | None = None,
    min_group: int = MIN_GROUP,
    level: float = 0.95,
    separator: str | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: str | None = None,
) -> Audit:
    """Audit predictions or scores: `ffalm.audit(frame, label="paid", prediction="said", group="sex").metrics`.

    - `data`: a table, as a DataFrame or the name of a file, of which the other arguments name columns. Without it they
      are arrays of one length, and `group` an array, a DataFrame or a dict of arrays by name;
    - `label`: the true outcome; without it only the shares predicted favourable are compared. `favourable` is the
      value that people want, 1 if labels are 0 and 1;
    - `prediction`: the predicted outcome, `score`: a score, higher is more favourable, or both. With scores alone
      the favourable outcome is predicted from `decision` up: by default 0.5 for probabilities, else 0;
    - `group`: a column, or several as a list or with commas: each is audited, and so are their crossings;
    - `min_group`: groups of fewer rows are shown and left out of gaps. So are rows whose group is missing, for which
      there are bounds over every assignment to groups;
    - `level`: of the confidence intervals;
    - `separator`, `decimal`, `encoding`: of a text file, as in `ffalm.load`.
    """
    require(prediction is not None or score is not None, "Give predictions or scores: there are neither.")
    require(
        decision is None or prediction is None,
        "A decision is made from scores, and predictions are given: leave it out.",
    )
    require(
        isinstance(min_group, int) and min_group >= 0, f"min_group must be 0 rows or more; got {short_repr(min_group)}."
    )
    require(
        0 < require_number(level, "level of intervals") < 1,
        f"The level of intervals must be between 0 and 1; got {level}.",
    )
    text_format = {"separator": separator, "decimal": decimal, "encoding": encoding}
    table = _Table.of(data, {"label": label, "prediction": prediction, "score": score}, group, text_format)
    judged = next(role for role in ("label", "prediction", "score") if role in table.columns)
    names: tuple[str, ...] = ("other", "favourable" if favourable is None else str(favourable))
    notes: tuple[str, ...] = ()
    if judged != "score":
        codes, names, notes = code_label(table.columns[judged], favourable, table.what)
    scores = None if score is None else numbers(table.columns["score"], FILL_OR_LEAVE_OUT)
    probabilities = scores is not None and bool(scores.min() >= 0 and scores.max() <= 1)
    threshold: float | None = None
    if prediction is not None:
        predicted = _predictions(table.columns["prediction"], names, table.what)
        if scores is not None and len(names) > 2:
            notes = (
                *notes,
                f"At other thresholds of the score all labels but {names[-1]!r} count as one: the accuracy there "
                "cannot be compared with that of the predictions.",
            )
    else:
        assert scores is not None
        threshold, note = own_decision(scores, probabilities, decision)
        if threshold is None:
            raise UserError(note)
        notes = (*notes, note)
        if len(names) > 2:
            notes = (*notes, f"All labels but {names[-1]!r} count as unfavourable: there is one score a row.")
            codes, names = (codes == len(names) - 1).astype(np.int64), ("other", names[-1])
        predicted = (scores >= threshold).astype(np.int64)
    if label is None:
        codes, notes = predicted, (*notes, _UNLABELLED)
    rows = AuditedRows(codes, predicted, scores, probabilities, names, level)
    sizes = range(1, len(table.groups) + 1)
    crossings = [one for size in sizes for one in itertools.combinations(table.groups, size)]
    grouped = [AuditedGroups.of(rows, table.frame, columns, min_group, table.what) for columns in crossings]
    spelled = (spelled_alike(one.grouping.names) for one in grouped if one.name in table.groups)
    return Audit(
        label=str(table.columns[judged].name),
        favourable=names[-1],
        rows=len(codes),
        scored=scores is not None,
        probabilities=probabilities,
        threshold=threshold,
        min_group=min_group,
        level=level,
        groupings=tuple(one.facts() if label is not None else one.facts().of_selection() for one in grouped),
        notes=(*table.notes, *notes, *itertools.chain(*spelled)),
        source=Path(data).name if isinstance(data, str | Path) else "",
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """The columns by their roles, and the columns of groups."""

    columns: dict[str, pd.Series]
    frame: pd.DataFrame  # of groups
    groups: tuple[str, ...]
    what: str  # for messages: the file
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Any, given: Mapping[str, Any], group: Any, text_format: Mapping[str, Any]) -> _Table:
        roles = {role: value for role, value in given.items() if value is not None}
        if data is not None:
            return cls._of_frame(data, roles, group, text_format)
        columns = {role: _series(values, role) for role, values in roles.items()}
        apart = index_notes({**roles, "group": group})
        if not isinstance(group, pd.DataFrame | Mapping):
            group = {str(getattr(group, "name", None) or "group"): group}
        grouped = [(str(name), _series(values, str(name))) for name, values in group.items()]
        sizes = {len(one) for one in (*columns.values(), *(values for _, values in grouped))}
        require(
            len(sizes) == 1 and 0 not in sizes and len(grouped) > 0,
            f"Labels, predictions, scores and groups must have one entry per row; got {sorted(sizes)}.",
        )
        frame = pd.DataFrame(dict(grouped))
        require(
            len(frame.columns) == len(grouped),
            f"Several groups have the same name: give each its own; got {', '.join(name for name, _ in grouped)}.",
        )
        return cls(columns, frame, _checked(tuple(frame.columns)), "the given rows", apart)

    @classmethod
    def _of_frame(cls, data: Any, roles: Mapping[str, Any], group: Any, text_format: Mapping[str, Any]) -> _Table:
        named = _checked(group_columns([group] if isinstance(group, str) else group))
        if isinstance(data, str | Path):
            what, frame = str(data), read_table(str(data), codes=code_columns(named), **text_format)[0]
        else:
            found = as_frame(data)
            if found is None:
                raise UserError(f"Give a table, as a DataFrame or a file; got {type(data).__name__}.")
            what, frame = "the given table", checked_columns(found, "the given table")[0]
        groups = _checked(tuple(dict.fromkeys(listed_columns(frame, named, what))))
        columns = {role: pick(frame, str(name), what) for role, name in roles.items()}
        return cls(columns, pd.DataFrame({name: pick(frame, name, what) for name in groups}), groups, what)


def _series(values: Any, name: str) -> pd.Series:
    return named_column(values, name, f"values of {name!r}")


def _checked(groups: tuple[str, ...]) -> tuple[str, ...]:
    require(len(groups) <= _MOST_COLUMNS, f"An audit crosses at most {_MOST_COLUMNS} group columns; got {len(groups)}.")
    return groups


def _predictions(column: pd.Series, names: tuple[str, ...], what: str) -> Codes:
    """The number of each predicted label."""
    codes, values = complete(column, "prediction", what)
    for value in values:
        if place_of(value, names) < 0:
            raise unknown(f"label in the predictions of {what}", value, names)
    return np.array([place_of(value, names) for value in values], dtype=np.int64)[codes]
