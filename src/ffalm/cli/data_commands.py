"""`ffalm data`: list, describe, check and download data sources."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import DATA, JSON, SET, listed, overrides, takes
from ffalm.cli.output import Json, print_json, print_line, print_table
from ffalm.cli.setting_words import SETTING_HEADS, settings_of
from ffalm.errors import require, require_known, short_repr

if TYPE_CHECKING:
    from ffalm.data.types import Dataset, Task
    from ffalm.report.tables import Cell, Table

data = typer.Typer(
    help="List, describe, check and download data sources.",
    invoke_without_command=True,
    epilog="Example: ffalm data check --data loans.csv --label paid --group sex --favourable yes",
)

_CHECK = (*DATA, SET, JSON)
_NAMES = 12  # the most columns or owners to show


@data.callback()
def list_sources(context: typer.Context, as_json: Json = False) -> None:
    """List the sources by name; see the commands below for more."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from ffalm.data import SOURCES, source_class

    classes = {name: source_class(name) for name in SOURCES}
    if as_json:
        facts = ("about", "asks", "needs_files")
        print_json({name: {fact: getattr(cls, fact) for fact in facts} for name, cls in classes.items()})
        return
    rows = [(name, cls.about, cls.asks) for name, cls in classes.items()]
    print_table(Console(), "Data sources", ("source", "what it is", "label and groups"), rows)


@data.command(epilog="Example: ffalm data describe utkface")
def describe(
    name: Annotated[str, typer.Argument(help="Name of a data source.", show_default=False)], as_json: Json = False
) -> None:
    """Describe a data source: what it is, and its settings with their defaults and meanings."""
    from rich.console import Console

    from ffalm.data import source_class

    cls: Any = source_class(name)
    own = settings_of(cls)
    if as_json:
        settings = {one.name: "needed" if one.required else one.default for one in own}
        print_json({"name": name, "about": cls.about, "asks": cls.asks, "settings": settings})
        return
    console = Console()
    console.print(f"[bold]{name}[/bold]: {cls.about}; {cls.asks}", highlight=False)
    if cls.__doc__:
        console.print(" ".join(cls.__doc__.split()), highlight=False, markup=False)
    print_table(console, "Settings: --set data.NAME=VALUE", SETTING_HEADS, [one.cells for one in own])
    if any(one.takes.startswith("list") for one in own):
        console.print('A list of several: --set \'data.NAME=["one", "two"]\'', highlight=False, markup=False)


@data.command(epilog="Example: ffalm data check --data adult --root uci/adult")
@takes("check", lambda: _CHECK)
def check(**values: Any) -> None:
    """Load a data source or your own file, and show its splits, labels and groups."""
    from ffalm.data import source

    whole = overrides(values, _CHECK)
    settings = whole.pop("data", {})
    require(not whole, f"`ffalm data check` takes only settings of data, such as data.rows; got {', '.join(whole)}.")
    require(
        isinstance(settings, dict), f"The part 'data' of a configuration must be a section; got {short_repr(settings)}."
    )
    dataset = source(settings.pop("source", "census"), **settings).load()
    if values["json"]:
        print_json(_facts(dataset))
    else:
        _print_facts(dataset)


@data.command(epilog="Example: ffalm data get adult --root uci")
def get(
    name: Annotated[str, typer.Argument(help="adult, compas or acs.", show_default=False)],
    root: Annotated[Path, typer.Option("--root", help="Folder to put the files in.")] = Path("data"),
    states: Annotated[str | None, typer.Option(help="States of acs, such as CA,TX, or all.")] = None,
    year: Annotated[int | None, typer.Option(help="Survey year of acs. Default: 2018.")] = None,
) -> None:
    """Download a published data set and verify its checksum."""
    from ffalm.data.acs_files import YEAR, publication
    from ffalm.data.download import PUBLICATIONS, fetch

    require_known("data set to download", [*PUBLICATIONS, "acs"], name)
    acs = name == "acs"
    require(acs or (states is None and year is None), "--states and --year are for acs only.")
    asked = publication(listed(states or ""), YEAR if year is None else year) if acs else name
    for fetched in fetch(asked, root):
        typer.echo(fetched.message)


def _facts(dataset: Dataset) -> dict[str, Any]:
    """The contents of a loaded data source, as plain values."""
    task = dataset.task
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    return {
        "task": dataclasses.asdict(task),
        "features": list(dataset.train.x.shape[1:]),
        "columns": _columns(dataset),
        "rows": {part: len(examples) for part, examples in parts.items()},
        "counts": {part: examples.counts(task).tolist() for part, examples in parts.items()},
        "owners": list(dataset.owner_names),
        "notes": list(dataset.notes),
    }


def _columns(dataset: Dataset) -> dict[str, Any]:
    """How each column of a table becomes features: as a number, or by its categories."""
    encoding = dataset.preprocessing and dataset.preprocessing.table
    return {one.name: list(getattr(one, "categories", ())) or "number" for one in encoding.columns} if encoding else {}


def _column_lines(columns: dict[str, Any], group: str) -> list[str]:
    """The same in words, and whether the model sees the group."""
    kinds = {
        "numbers": [name for name, kind in columns.items() if kind == "number"],
        "categories": [f"{name} ({len(kind)})" for name, kind in columns.items() if kind != "number"],
    }
    lines = [f"Features read as {kind}: {_some(names)}" for kind, names in kinds.items() if names]
    seen = [name for name in group.split(", ") if name in columns]
    if seen:
        hidden = "--set data.use_group_as_feature=false hides it"
        lines.append(f"The group ({', '.join(seen)}) is a feature of the model; {hidden}.")
    return lines


def _print_facts(dataset: Dataset) -> None:
    from rich.console import Console
    from rich.markup import escape

    from ffalm.report.rendering import print_whole

    task, facts = dataset.task, _facts(dataset)
    console = Console()
    shape = " x ".join(map(str, facts["features"]))
    favourable = escape(task.label_names[task.favourable])
    rows = f"{sum(facts['rows'].values()):,} rows"
    console.print(
        f"[bold]{escape(task.name)}[/bold]: {rows}, {shape} features; favourable: {favourable}", highlight=False
    )
    for line in _column_lines(facts["columns"], task.group):
        print_line(console, line)
    print_whole(console, _counted(task, facts))
    if facts["owners"]:
        owners = facts["owners"]
        print_line(console, f"{len(owners)} owner{'s' * (len(owners) != 1)}: {_some(owners)}")
    for note in facts["notes"]:
        print_line(console, note)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")


def _counted(task: Task, facts: dict[str, Any]) -> Table:
    """Of each part, how many rows each group has, and which share of them is favourable."""
    from ffalm.report.tables import Cell, Column, Section, Table, row

    favourable = task.label_names[task.favourable]

    def cells(groups: Iterable[int]) -> Iterator[Cell]:
        for counts in facts["counts"].values():
            by_label = [sum(one[group] for group in groups) for one in counts]
            total = sum(by_label)
            yield Cell(total)
            yield Cell(by_label[task.favourable] / total if total else math.nan)

    columns = [Column("Group")]
    for part in facts["counts"]:
        columns += [Column("rows", "count", over=part), Column(favourable, "percent", 1)]
    names = [name if place < task.compared else f"{name} (not compared)" for place, name in enumerate(task.group_names)]
    each = Section([row(name, *cells([group])) for group, name in enumerate(names)])
    caption = f"{favourable}: share of these rows in percent."
    sections = [each, Section([row("all", *cells(range(task.groups)))])]
    return Table(f"{task.label}, by {task.group}", columns, sections, caption)
