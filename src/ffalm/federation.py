"""A federation: who owns which examples, and the parts on which models are scored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ffalm.arrays import index_notes
from ffalm.data import find_source
from ffalm.data.array_parts import read_parts, warn_of_scale
from ffalm.data.compact_features import measured, row_bytes
from ffalm.data.row_views import ClientRows, RowView, row_views_of
from ffalm.data.types import Dataset, Examples, Source, Task
from ffalm.errors import UserError, meant_by, require, require_known, short_repr, unknown
from ffalm.frame_html import frame_html
from ffalm.partition import Kind, Partition
from ffalm.settings import build
from ffalm.system.torch_modes import usual_modes

if TYPE_CHECKING:
    from pandas import DataFrame

    from ffalm.data.preprocessing import Preprocessing

_HASHED_BYTES = 2**28  # of a tensor, for its fingerprint
_COLUMNS = ("x", "y", "group")
_OF_LOAD = ("clients", "alpha", "partition", "min_rows", "leave_out", "seed")  # arguments that no source has

Arrays = tuple[Any, Any, Any]
"""(x, y, group) as numpy arrays, torch tensors or lists."""


@dataclass(frozen=True, repr=False)
class Federation:
    """Clients with their training examples; pooled validation and test parts; the task they share.

    Clients that share one table hold row numbers only: `clients[i]` gathers that client's examples each time it is
    called, so keep the result if you need it often.
    """

    clients: Sequence[Examples]
    validation: Examples | None
    test: Examples | None
    task: Task
    client_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    validation_client: Tensor | None = None  # the client that owns each validation row, -1 for none; None if unknown
    test_client: Tensor | None = None
    all_groups: bool = field(default=True, repr=False)  # whether every compared group must have training rows
    preprocessing: Preprocessing | None = None  # that made the features, None if they were given as arrays
    feature_names: tuple[str, ...] = ()  # the names of features that were given as data frames

    def __post_init__(self) -> None:
        self._check_types()
        require(len(self.clients) > 0, "A federation needs at least one client.")
        if not self.client_names:
            object.__setattr__(self, "client_names", tuple(str(i) for i in range(len(self.clients))))
        like = self.first_rows(1)
        sources = {id(view.source): view.source for view in self.row_views}
        sound = {key: _sound(source, self.task, like) for key, source in sources.items()}
        for name, view in zip(self.client_names, self.row_views, strict=True):
            if len(view) == 0 or not sound[id(view.source)]:
                _check(view.examples(), f"client {name}", self.task, like)
        for name, part in (("validation part", self.validation), ("test part", self.test)):
            if part is not None:
                _check(part, name, self.task, like)
        held = self.counts().sum((0, 1))[: self.task.compared if self.all_groups else 0]
        for group, rows in enumerate(held.tolist()):
            require(
                rows > 0,
                f"No client has a row of group {self.task.group_names[group]!r}: a model cannot learn about it; leave "
                "the group out or give some client its rows.",
            )

    def _check_types(self) -> None:
        """Refuse arguments of other types, without gathering any client's rows."""
        parts = (self.validation, self.test)
        dealt = isinstance(self.clients, ClientRows)
        require(
            (dealt or _all_examples(self.clients))
            and all(part is None or isinstance(part, Examples) for part in parts),
            "Clients are a list of Examples, and so are the validation and test parts: Federation.from_arrays takes "
            "arrays.",
        )
        require(isinstance(self.task, Task), f"The task of a federation is a Task; got {short_repr(self.task)}.")
        names = self.client_names
        require(
            isinstance(names, tuple | list) and len(names) in (0, len(self.clients)),
            f"There are {len(self.clients)} clients, with one name each; got {short_repr(names)}.",
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[Arrays | Any],
        validation: Arrays | Any = None,
        test: Arrays | Any = None,
        favourable: int | str | None = None,
        name: str = "arrays",
        unknown: int | str | None = None,
    ) -> Federation:
        """A federation of arrays that are already cut up by client.

        Each client is (x, y, group), a torch dataset of such rows, or a Hugging Face dataset (or dict) with these three
        columns. `x` is an array, tensor or data frame of numbers, whose columns are matched by name where data frames
        have names. Labels and groups are whole numbers from 0, or texts.
        `favourable` is the label that people want, 1 unless given; of labels that are texts it must be named.

        Rows of the group `unknown`, such as -1 or "?", and rows without one where groups are texts, train and are
        scored; gaps and constraints leave them out.

        Features of type uint8 are pixels, of which 255 counts as 1. Only tables of bytes that are all 0 or 1 are taken
        as they stand: those are one-hot encodings and no pictures. Columns of very large numbers give an
        `UnscaledFeaturesWarning`.
        """
        if not isinstance(clients, Iterable) or isinstance(clients, str | bytes | Mapping | Tensor | np.ndarray):
            raise UserError(f"The clients must be a list with one (x, y, group) each; got {short_repr(clients)}.")
        require(isinstance(name, str), f"The name of a federation must be a text; got {short_repr(name)}.")
        owned = [(f"client {number}", arrays) for number, arrays in enumerate(clients)]
        require(len(owned) > 0, "A federation needs at least one client.")
        others = [(part, arrays) for part, arrays in (("validation part", validation), ("test part", test))
                  if arrays is not None]  # fmt: skip
        with usual_modes():
            examples, task, columns = read_parts([*owned, *others], favourable, name, unknown)
            parts = dict(zip([part for part, _ in others], examples[len(owned) :], strict=True))
            federation = cls(
                tuple(examples[: len(owned)]),
                parts.get("validation part"),
                parts.get("test part"),
                task,
                notes=tuple(chain(*(_index_notes(where, arrays) for where, arrays in [*owned, *others]))),
                feature_names=columns,
            )
            warn_of_scale([client.x for client in federation.clients], stacklevel=2)
        return federation

    @classmethod
    def from_dataset(cls, dataset: Dataset, partition: Partition, seed: int = 0) -> Federation:
        """The data's training rows given to clients; its other parts stay whole.

        With natural silos, the owners of the other parts' rows are known too. All rows of a silo that is left out are
        test rows: none of them is used for training or validation.
        """
        if partition.leave_out is not None:
            return _without_silo(dataset, partition, seed)
        parts = partition.split(dataset, seed)
        silos = partition.kind == "silos"
        _, validation_client, test_client = dataset.owners if silos and dataset.owners else (None, None, None)
        return cls(
            clients=ClientRows([RowView(dataset.train, rows) for rows in parts]),
            validation=dataset.validation,
            test=dataset.test,
            task=dataset.task,
            client_names=dataset.owner_names if silos else (),
            notes=(*dataset.notes, *_left_out(len(dataset.train), sum(map(len, parts)), partition)),
            validation_client=validation_client,
            test_client=test_client,
            preprocessing=dataset.preprocessing,
        )

    def __repr__(self) -> str:
        sizes = [len(view) for view in self.row_views]
        parts = (("validation", self.validation), ("test", self.test))
        return (
            f"Federation({self.task.name}: {len(sizes)} clients of {min(sizes)} to {max(sizes)} rows, "
            f"{', '.join(f'{name} {0 if part is None else len(part)}' for name, part in parts)} rows, "
            f"{self.task.labels} labels, {self.task.groups} groups)"
        )

    def to_dataframe(self) -> DataFrame:
        """One row per client, as in `summary`."""
        from pandas import DataFrame

        return DataFrame(self.summary()).set_index("client")

    def _repr_html_(self) -> str:
        return frame_html(repr(self), self.to_dataframe(), self.notes)

    def own_parts(self, part: Literal["validation", "test"]) -> Sequence[Examples] | None:
        """Each client's own rows of the validation or test part; None if their owners are unknown."""
        require_known("part of held-out rows", ("validation", "test"), part)
        rows, client = getattr(self, part), getattr(self, f"{part}_client")
        if rows is None or client is None:
            return None
        return ClientRows(
            [RowView(rows, (client == number).nonzero().flatten()) for number in range(len(self.clients))]
        )

    def counts(self) -> Tensor:
        """Training rows per (client, label, group)."""
        return torch.stack([view.counts(self.task) for view in self.row_views])

    @cached_property
    def row_views(self) -> tuple[RowView, ...]:
        """What each client holds, without gathering any rows."""
        return row_views_of(self.clients)

    def fingerprint(self) -> str:
        """A checksum of the task and of every row, by which a resumed study notices that its data has changed.

        Of features larger than 256 MB every k-th row is taken, so that this takes a second at most.
        """
        found = hashlib.sha256(repr((self.task, self.task.excluded, self.client_names)).encode())
        parts = [part for part in (self.validation, self.test) if part is not None]
        sources = {id(one): one for one in (*(view.source for view in self.row_views), *parts)}
        rows = [view.rows for view in self.row_views if view.rows is not None]
        rows += [owner for owner in (self.validation_client, self.test_client) if owner is not None]
        for tensor in (*(one for part in sources.values() for one in (part.x, part.y, part.group)), *rows):
            step = max(1, -(-tensor.nbytes // _HASHED_BYTES))
            found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            for rows_of_bytes in row_bytes(tensor, step):
                found.update(rows_of_bytes)
        return found.hexdigest()

    def first_rows(self, count: int) -> Examples:
        """The first client's first rows, to inspect the shape and type of features."""
        whole = isinstance(count, Integral) and count >= 0
        require(whole, f"The number of rows must be a whole number from 0 up; got {short_repr(count)}.")
        return self.row_views[0].first(int(count))

    def pooled(self) -> Federation:
        """All clients' rows held by one client, for central training; the other parts stay as they are."""
        sources = {id(view.source): view.source for view in self.row_views}
        if len(sources) == 1 and all(view.rows is not None for view in self.row_views):
            rows = torch.cat([view.rows for view in self.row_views if view.rows is not None])
            whole = RowView(next(iter(sources.values())), rows)
        else:
            parts = [view.examples() for view in self.row_views]
            whole = RowView(Examples(*(torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS)))
        clients = ClientRows([whole])
        return replace(self, clients=clients, client_names=("all",), validation_client=None, test_client=None)

    def alone(self, client: int) -> Federation:
        """One client by itself, with the shared validation and test rows."""

        known = isinstance(client, Integral) and 0 <= client < len(self.clients)
        require(known, f"The client must be a number from 0 to {len(self.clients) - 1}; got {short_repr(client)}.")

        def renumbered(owners: Tensor | None) -> Tensor | None:
            return None if owners is None else torch.where(owners == client, 0, -1)

        return replace(
            self,
            clients=ClientRows([self.row_views[client]]),
            client_names=(self.client_names[client],),
            validation_client=renumbered(self.validation_client),
            test_client=renumbered(self.test_client),
            all_groups=False,
        )

    def with_group_labels(self) -> Federation:
        """The same rows labelled by (favourable or not, group): what a model of P(label, group | x) is trained on.

        There is no test part, since nothing may be fitted on it.
        """
        task = self.task
        sources = {id(view.source): view.source.with_group_labels(task) for view in self.row_views}
        return replace(
            self,
            clients=ClientRows([replace(view, source=sources[id(view.source)]) for view in self.row_views]),
            validation=None if self.validation is None else self.validation.with_group_labels(task),
            test=None,
            task=task.with_group_labels(),
            validation_client=None,
            test_client=None,
        )

    def summary(self) -> list[dict[str, Any]]:
        """One row per client: its size, its share of favourable labels and of each group."""
        rows = []
        for name, counts in zip(self.client_names, self.counts(), strict=True):
            size = int(counts.sum())
            row: dict[str, Any] = {"client": name, "rows": size}
            row[f"label {self.task.label_names[self.task.favourable]}"] = (
                float(counts[self.task.favourable].sum()) / size
            )
            for group, group_name in enumerate(self.task.group_names):
                row[f"group {group_name}"] = float(counts[:, group].sum()) / size
            rows.append(row)
        return rows


def _all_examples(clients: Any) -> bool:
    return isinstance(clients, Sequence) and all(isinstance(one, Examples) for one in clients)


def load(
    name: str | os.PathLike[str] | DataFrame,
    *,
    clients: int = Partition.clients,
    alpha: float = Partition.alpha,
    partition: Kind | None = None,
    min_rows: int | None = None,
    leave_out: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Federation:
    """A federation over a data source by name, or over a table of your own: its path, or a data frame.

    `settings` are the source's own, such as a table's `label`, `group` and `favourable`; `seed` draws the partition.
    The partition is "plain" unless given, and "silos" if an `owner` column says which client owns a row; then
    `leave_out` names one whose rows are all kept for the test part: what would a site see that did not train?
    """
    _refuse_others_names("argument of load", settings, _OF_LOAD)  # or a source's settings alone would be suggested
    origin = _source(name, settings)
    kind = owners_partition(origin) if partition is None else {"kind": partition}
    cut = {**kind, "clients": clients, "alpha": alpha, "leave_out": leave_out}
    cut |= {} if min_rows is None else {"min_rows": min_rows}
    split = build(Partition, cut, "partition")
    split.require_effects(cut)
    whole = isinstance(seed, Integral) and not isinstance(seed, bool) and int(seed) >= 0
    require(whole, f"The seed must be a whole number from 0 up; got {short_repr(seed)}.")
    with usual_modes():
        return Federation.from_dataset(origin.load(), split, int(seed))


def _index_notes(where: str, arrays: Any) -> tuple[str, ...]:
    """A note on features, labels and groups of pandas whose rows are in different orders."""
    if not (isinstance(arrays, tuple | list) and len(arrays) == len(_COLUMNS)):
        return ()
    names = (f"{what} of the {where}" for what in ("features", "labels", "groups"))
    return index_notes(dict(zip(names, arrays, strict=True)))


def _source(name: Any, settings: Mapping[str, Any]) -> Source:
    """A source by its name, a table by its path, or a data frame."""
    if isinstance(name, str | os.PathLike):
        place = os.fspath(name)
        require(isinstance(place, str), f"The path of a table must be a text; got {short_repr(place)}.")
        return find_source(place, settings)
    from ffalm.data.table import FrameTable
    from ffalm.data.table_files import as_frame

    frame = as_frame(name)
    if frame is None:
        raise UserError(
            f"Give a data source by its name, or a table by its path or as a data frame; got {short_repr(name)}."
        )
    for role in ("label", "group"):
        _refuse_others_names("setting of a data frame", settings, (role,))
        require(role in settings, f"A data frame needs the setting {role!r}: name its {role} column.")
    return cast(Source, build(FrameTable, {**settings, "frame": frame}, "data frame"))


def _refuse_others_names(kind: str, settings: Mapping[str, Any], ours: tuple[str, ...]) -> None:
    """Refuse a setting by which others mean one of ours."""
    for name in settings:
        if meant_by(name, ours) is not None:
            raise unknown(kind, name, ours)


def _without_silo(dataset: Dataset, partition: Partition, seed: int) -> Federation:
    """The federation of all owners but one, tested on that one's rows."""
    whole, name = Federation.from_dataset(dataset, replace(partition, leave_out=None), seed), partition.leave_out
    require_known("site to leave out", dataset.owner_names, name)
    place = dataset.owner_names.index(str(name))
    assert dataset.owners is not None
    parts = zip((dataset.train, dataset.validation, dataset.test), dataset.owners, strict=True)
    mine = [part.take((owner == place).nonzero().flatten()) for part, owner in parts]
    others = dataset.owners[1] != place
    test = Examples(*(torch.cat([getattr(part, what) for part in mine]) for what in _COLUMNS))
    note = (
        f"The site {name!r} took no part in training, validation and thresholds: the test part is all of its "
        f"{len(test):,} rows. Columns were standardised by the training rows of all sites, this one included."
    )
    rest = dataset.owners[1][others]
    return replace(
        whole,
        clients=ClientRows([view for number, view in enumerate(whole.row_views) if number != place]),
        validation=dataset.validation.take(others.nonzero().flatten()),
        test=test,
        client_names=tuple(own for own in dataset.owner_names if own != name),
        notes=(*whole.notes, note),
        validation_client=rest - (rest > place).long(),
        test_client=None,
    )


def owners_partition(source: Source, given: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The partition that a data source implies: its owners, if a column names them.

    So it is for a source of natural silos, such as states, unless settings of another partition are given.
    """
    natural = getattr(source, "natural_silos", False) and not {"kind", "clients", "alpha"} & (given or {}).keys()
    return {"kind": "silos"} if natural or getattr(source, "owner", None) is not None else {}


def _left_out(rows: int, dealt: int, partition: Partition) -> tuple[str, ...]:
    """A note on training rows that no client has."""
    if dealt == rows:
        return ()
    return (f"The partition {partition.kind!r} gave clients {dealt:,} of {rows:,} training rows; the rest is unused.",)


def _sound(examples: Examples, task: Task, like: Examples) -> bool:
    """Whether all rows are valid: then those of each client are too, and need not be gathered to be checked."""
    try:
        _check(examples, "source", task, like)
    except UserError:
        return False
    return True


def _check(examples: Examples, where: str, task: Task, like: Examples) -> None:
    """Refuse examples that training or scoring could not use."""
    require(len(examples) > 0, f"The {where} is empty: every part of a federation needs at least one row.")
    require(
        examples.x.shape[1:] == like.x.shape[1:],
        f"The {where} has features of shape {tuple(examples.x.shape[1:])}, others have {tuple(like.x.shape[1:])}.",
    )
    values = measured(examples.x)
    if values.dtype.is_floating_point and not bool(values.sum().isfinite()):  # a large sum proves nothing yet
        bad = int((~values.isfinite()).sum())
        require(bad == 0, f"The {where} has {bad} feature values that are NaN or infinite: fill or drop them first.")
    for values, limit, what in ((examples.y, task.labels, "label"), (examples.group, task.groups, "group")):
        lowest, largest = int(values.min()), int(values.max())
        require(
            lowest >= 0 and largest < limit,
            f"The {where} has the {what} {lowest if lowest < 0 else largest}, but the task {task.name!r} has {limit} "
            f"{what}s, numbered from 0.",
        )
