"""Derives one task and one encoding from the sites' descriptions, and says what does not fit at each site.

What `federation.toml` leaves open, most sites decide: a column has the kind that it has at most sites; in a tie, the
kind at the first site in the list. So one odd file is the misfit, not all the others.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from statistics import median

from torch import Tensor

from ffalm import config as study
from ffalm.data.category_lookup import as_text
from ffalm.data.encoding import ColumnSummary, NumericColumn, NumericSummary, TableEncoding, TableSummary
from ffalm.data.group_settings import fewest_rows, unknown_name
from ffalm.data.table_values import listed, natural, place_of
from ffalm.data.types import Task
from ffalm.errors import UserError, require, unknown
from ffalm.federate.coordinator.robust_aggregation import FEWEST_COMPARED, largest_size
from ffalm.federate.description import ColumnKind, Description
from ffalm.federate.federation_config import FederationConfig, SharedData, SharedImages
from ffalm.federate.terms import SiteTerms
from ffalm.models import Architecture, from_scratch
from ffalm.settings import build, to_plain
from ffalm.system.files import read_json, write_atomic


@dataclass(frozen=True)
class Agreement:
    """What is fixed before the first round; kept with the model, which is applied by it."""

    task: Task
    data: SharedData
    encoding: TableEncoding | None  # of a table; images need none
    model: Architecture  # without initial weights: the coordinator sends the weights in every round
    sites: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one encoded row."""
        if isinstance(self.data, SharedImages):
            return (3, self.data.size, self.data.size)
        assert self.encoding is not None
        return (len(self.encoding.features),)

    def kinds(self) -> dict[str, ColumnKind] | None:
        """The columns that a table must have."""
        if self.encoding is None:
            return None
        return {c.name: "numbers" if isinstance(c, NumericColumn) else "text" for c in self.encoding.columns}

    def terms(self, site: str, config: FederationConfig, run: str = "") -> SiteTerms:
        """The terms of one site; `run` is a name that no other run has."""
        return SiteTerms(
            client=self.sites.index(site),
            task=self.task,
            data=self.data,
            encoding=None if self.encoding is None else self.encoding.to_json(),
            shape=self.shape,
            model=self.model,
            training=config.training,
            contender=config.contender,
            target=config.target,
            seed=config.seed,
            min_group=config.rules.min_group,
            secure=config.secure,
            privacy=None if config.secure is None else config.privacy,
            run=run,
            sites=() if config.secure is None else self.sites,
            repair=config.repair if config.thresholds_at_sites else None,
            confidence=(config.confidence or 0.5) if config.thresholds_at_sites else 0.5,
            blind=config.blind,
        )

    def save(self, file: Path) -> None:
        """Write `encoding.json`."""
        encoding = None if self.encoding is None else json.loads(self.encoding.to_json())
        write_atomic(file, json.dumps({**to_plain(self), "encoding": encoding}, indent=2) + "\n")

    @classmethod
    def load(cls, file: Path) -> Agreement:
        """The agreement that `save` wrote."""
        try:
            values = read_json(file)
            columns = values["encoding"]
            encoding = None if columns is None else TableEncoding.from_json(json.dumps(columns))
            return build(cls, {**values, "encoding": encoding, "model": study.model_of(values["model"])}, "agreement")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"The agreement {file} cannot be read ({error}): restore the file.") from None


class NoneFits(UserError):
    """No site fits; `misfits` has each one's differences."""

    def __init__(self, misfits: dict[str, str]) -> None:
        super().__init__(" ".join(misfits.values()))
        self.misfits = misfits


def agree(config: FederationConfig, told: Mapping[str, Description]) -> tuple[Agreement, dict[str, str]]:
    """The agreement of the sites that fit, and why each of the others does not fit; raises `NoneFits` if none does."""
    require(bool(told), "No site has said what its file looks like.")
    told = {site: told[site] for site in config.sites if site in told}
    misfits = {site: _wrong_source(site, one, config.data) for site, one in told.items()}
    alike = {site: one for site, one in told.items() if not misfits[site]}
    if not alike:
        raise NoneFits(misfits)
    kinds = common_kinds(config, alike)
    labels = _label_names(config.data, list(alike.values()))
    fixed = tuple(as_text(group) for group in config.data.groups)
    groups = fixed or _usual_groups(list(alike.values()))
    rare_allowed = config.data.crossed and not fixed  # a crossing that only one site has is not compared
    for site, one in alike.items():
        misfits[site] = _differences(site, one, kinds, labels, () if rare_allowed else groups)
    for site, reason in _out_of_scale({site: alike[site] for site in alike if not misfits[site]}, config).items():
        misfits[site] = reason
    fitting = [one for site, one in alike.items() if not misfits[site]]
    if not fitting:
        raise NoneFits(misfits)
    require(len(groups) >= 2, f"All sites together have only one group, {listed(list(groups))}: list more in `groups`.")
    ungrouped = any(one.ungrouped or any(place_of(group, groups) < 0 for group in one.groups) for one in fitting)
    task = Task(config.name, config.data.label, ", ".join(config.data.group_columns), labels, groups, len(labels) - 1)
    task = task if not ungrouped else _with_others(task, config.data)
    summary = None if kinds is None else _summed(fitting, kinds, config.rules.max_share)
    encoding = None if summary is None else TableEncoding.of(summary, long_tails=True)
    wrong = {site: reason for site, reason in misfits.items() if reason}
    return Agreement(task, config.data, encoding, from_scratch(config.model), config.sites), wrong


def without_small_groups(agreement: Agreement, rows: Tensor) -> Agreement:
    """The agreement with groups of too few training rows among those that are not compared.

    `rows` are training rows by (site, label, group), without those that sites withhold.
    """
    data, task = agreement.data, agreement.task
    fewest = fewest_rows(data.min_group_size, data.group_columns)
    counts = rows.sum(0)[: task.compared].tolist()
    kept = [name for name, count in zip(task.group_names, counts, strict=False) if count >= fewest]
    if len(kept) == task.compared:
        return agreement
    require(
        len(kept) >= 2,
        f"Fewer than two groups have {fewest} training rows that sites report: lower min_group_size under [data], or "
        "cross fewer columns.",
    )
    task = task if task.excluded else _with_others(task, data)
    small = [name for name in task.group_names[: task.compared] if name not in kept]
    names = (*kept, *small, *task.group_names[task.compared :])
    return replace(agreement, task=replace(task, group_names=names, excluded=task.excluded + len(small)))


def _with_others(task: Task, data: SharedData) -> Task:
    """The task with one more group, which is not compared, for all rows that are in no other."""
    name = "other" if data.crossed and "other" not in task.group_names else unknown_name(task.group_names)
    return replace(task, group_names=(*task.group_names, name), excluded=1)


def misfit(agreement: Agreement, site: str, told: Description) -> str:
    """Why a site's file does not fit an earlier agreement; empty if it fits."""
    wrong = _wrong_source(site, told, agreement.data)
    task = agreement.task
    groups = () if agreement.data.crossed and task.excluded else task.group_names[: task.groups - bool(task.excluded)]
    wrong = wrong or _differences(site, told, agreement.kinds(), task.label_names, groups)
    if not wrong and told.ungrouped and not task.excluded:
        return f"The site {site!r} has rows without a group, and the federation agreed before any site had such rows."
    return wrong


def _wrong_source(site: str, told: Description, data: SharedData) -> str:
    if told.source != data.source:
        return f"The site {site!r} has data of the kind {told.source!r}, the federation uses {data.source!r}."
    if isinstance(data, SharedImages) and told.size != data.size:
        return f"The site {site!r} has images of {told.size} pixels, the federation uses {data.size}."
    if data.source == "table" and told.kinds is None:
        return f"The site {site!r} did not report which columns its table has."
    return ""


def _differences(
    site: str,
    told: Description,
    kinds: Mapping[str, ColumnKind] | None,
    labels: Sequence[str],
    groups: Sequence[str],
) -> str:
    """Every difference in a sentence. Columns that only this site has are not used."""
    found = []
    own = told.kinds or {}
    summaries = {} if told.columns is None else told.columns.columns
    for name, kind in (kinds or {}).items():
        if name not in own:
            found.append(f"The site {site!r} lacks the column {name!r}, which the others have.")
        elif own[name] != kind:
            found.append(f"The site {site!r} has the column {name!r} as {own[name]}, the others as {kind}.")
        elif _kind(summaries.get(name)) != kind:
            found.append(f"The site {site!r} did not describe its column {name!r}.")
        elif _boundless(summaries[name]):
            found.append(f"The site {site!r} has values in the column {name!r} that are too large to be standardised.")
    for what, values, known in (("label", told.labels, labels), ("group", told.groups, groups)):
        stray = [value for value in values if known and place_of(value, known) < 0]
        if stray:
            found.append(
                f"The site {site!r} has the {what} {listed(stray)}; the federation knows {listed(list(known))}."
            )
    return " ".join(found)


def _kind(column: ColumnSummary | None) -> ColumnKind | None:
    return None if column is None else "numbers" if isinstance(column, NumericSummary) else "text"


def _boundless(column: ColumnSummary) -> bool:
    """Whether a column's sums are not finite, or over no rows."""
    return isinstance(column, NumericSummary) and not (
        column.rows > 0 and math.isfinite(column.total) and math.isfinite(column.squares)
    )


def common_kinds(config: FederationConfig, told: Mapping[str, Description]) -> dict[str, ColumnKind] | None:
    """The columns that federation.toml lists, otherwise those of most sites, each with its most frequent kind.

    A column that exactly half of the sites have is used if the first site has it.
    """
    kinds = {site: told[site].kinds for site in config.sites if site in told}
    tables = [table for table in kinds.values() if table is not None]
    if not tables or isinstance(config.data, SharedImages):
        return None
    listed_ones = config.data.columns
    common: dict[str, ColumnKind] = {}
    for name in listed_ones or dict.fromkeys(name for table in tables for name in table):
        having = [table[name] for table in tables if name in table]
        half = 2 * len(having) == len(tables) and name in tables[0]
        if having and (listed_ones or half or 2 * len(having) > len(tables)):
            common[name] = Counter(having).most_common(1)[0][0]
    missing = sorted(set(listed_ones) - common.keys())
    require(not missing, f"No site has the columns {', '.join(missing)}, which `columns` in federation.toml lists.")
    each = " ".join(f"The site {site!r} has {listed(list(table or ())) or 'none'}." for site, table in kinds.items())
    require(bool(common), f"The sites' tables have no feature column in common. {each}")
    return common


def _summed(told: Sequence[Description], kinds: Mapping[str, ColumnKind], max_share: float) -> TableSummary:
    """The sum of the sites' summaries, in the order of sites, so that it is always the same to the last bit.

    In a column's mean and spread no site counts for more than `max_share` of all rows.
    """
    tables = [one.columns.columns for one in told if one.columns is not None]
    summaries = [TableSummary({name: table[name] for name in kinds}) for table in tables]
    if max_share < 1:
        columns = {name: _bounded([table[name] for table in tables], max_share) for name in kinds}
        summaries = [TableSummary({name: columns[name][place] for name in kinds}) for place in range(len(tables))]
    return reduce(add, summaries)


def _bounded(columns: Sequence[ColumnSummary], max_share: float) -> list[ColumnSummary]:
    """A column's summaries; those over too many rows are scaled down."""
    bound = largest_size((column.rows for column in columns if isinstance(column, NumericSummary)), max_share)
    return [
        _scaled(column, bound) if isinstance(column, NumericSummary) and column.rows > bound else column
        for column in columns
    ]


def _scaled(column: NumericSummary, rows: int) -> NumericSummary:
    """The summary scaled to this number of rows."""
    count = round(column.count * rows / column.rows)
    sums = column.total, column.squares, column.roots, column.root_squares
    total, squares, roots, root_squares = (one * count / max(1, column.count) for one in sums)
    deviations = None if column.deviations is None else column.deviations * count / max(1, column.count)
    return NumericSummary(count, total, squares, roots, root_squares, rows - count, deviations)


def _out_of_scale(told: Mapping[str, Description], config: FederationConfig) -> dict[str, str]:
    """The sites with a column whose root mean square is more than `outlier`^2 times the median of the others'."""
    found: dict[str, str] = {}
    tables = {site: one.columns.columns for site, one in told.items() if one.columns is not None}
    for name in next(iter(tables.values()), {}) if len(tables) >= FEWEST_COMPARED else ():
        columns = {site: table.get(name) for site, table in tables.items()}
        sizes = {
            site: math.sqrt(column.squares / column.count)
            for site, column in columns.items()
            if isinstance(column, NumericSummary) and column.count
        }
        for site, size in sizes.items():
            others = [other for name_of, other in sizes.items() if name_of != site]
            if others and size > config.rules.outlier * config.rules.outlier * median(others) > 0:
                found[site] = (
                    f"The site {site!r} has values in the column {name!r} that are {size / median(others):.3g} times "
                    "as large as the others': use the same unit everywhere."
                )
    return found


def _label_names(data: SharedData, told: Sequence[Description]) -> tuple[str, ...]:
    """The values of the label, the favourable one last: those that `label_values` lists, or the two that sites have."""
    values = tuple(as_text(value) for value in data.label_values) or _usual_labels(told)
    where = f"the label {data.label!r}"
    require(
        len(values) == 2 or bool(data.label_values),
        f"All sites together must have two values of {where}, each in enough rows to be named, but have "
        f"{listed(list(values))}: list all values as label_values in federation.toml.",
    )
    favourable = data.favourable
    if favourable is None:
        require(
            len(values) == 2 and sorted(place_of(value, values) for value in (0, 1)) == [0, 1],
            f"Say which value of {where} people want: set favourable in federation.toml to {listed(list(values))}.",
        )
        favourable = 1
    best = place_of(favourable, values)
    if best < 0:
        raise unknown(f"value of {where}", as_text(favourable), values)
    return *values[:best], *values[best + 1 :], values[best]


def _usual_labels(told: Sequence[Description]) -> tuple[str, ...]:
    """The pair of values that most sites have; all values, if no site has a pair."""
    pairs = Counter(tuple(one.labels) for one in told if len(one.labels) == 2)
    return pairs.most_common(1)[0][0] if pairs else _merged(one.labels for one in told)


def _usual_groups(told: Sequence[Description]) -> tuple[str, ...]:
    """The groups that sites have. With three or more sites, at least two must have a group: no single site can add one.

    If that leaves fewer than two groups, all are taken.
    """
    groups = _merged(one.groups for one in told)
    shared = tuple(
        group
        for group in groups
        if sum(place_of(group, one.groups) >= 0 for one in told) > (len(told) >= FEWEST_COMPARED)
    )
    return shared if len(shared) >= 2 else groups


def _merged(many: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """All values in natural order; those that differ only in spelling, such as yes and Yes, are one."""
    names: list[str] = []
    for values in many:
        names += [value for value in values if place_of(value, names) < 0]
    return tuple(sorted(names, key=natural))
