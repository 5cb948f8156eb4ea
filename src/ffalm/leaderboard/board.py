"""A board as its TOML file defines it: the methods and settings to try, the data, and the bounds.

    [cells."adult, alpha 0.3"]            a data set cut into clients; any section of a study's configuration
    data = { source = "adult" }
    partition = { alpha = 0.3 }

    [methods.fpfl]                        a method, and the settings that it may choose from
    title = "FPFL"
    settings = [{ penalty = 1.0 }, { penalty = 5.0 }]

`dpd` and `eod`, in place of `settings`, are for the bounds of one metric only. A method may have at most `budget`
settings per metric. `repair` lets a method fit thresholds to the held-out rows, `aims = true` adds the Lagrangians of
each bound, as `ffalm compare --target` does, and `training` changes the training of one method.

    extends = "tables"                    rows and cells for a board of ours, in a file that has nothing else

Bounds, budget and training stay as they are, so the new rows are comparable with the published ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ffalm.algorithms import algorithm_class
from ffalm.config import AFTER_TRAINING, StudyConfig, check, parse, read, section
from ffalm.data import source_class
from ffalm.errors import look_up, require, require_known, short_repr
from ffalm.plugins import import_plugin
from ffalm.settings import merged, number_text
from ffalm.targets.candidates import lagrangians
from ffalm.targets.target import KINDS, Repair, Scope, Target

BOARDS = Path(__file__).parent / "boards"
METRICS = ("dpd", "eod")


@dataclass(frozen=True)
class Method:
    """One row of the leaderboard: an algorithm with the settings that it may choose from on held-out rows."""

    name: str
    title: str
    points: Mapping[str, Sequence[Mapping[str, Any]]]  # sections of a configuration by metric
    repair: Repair = "none"  # the kinds of thresholds that it may fit
    scope: Scope = "federation"  # where the bound is to hold: "both" adds every site
    aims: bool = False  # whether it also trains the Lagrangians of each bound
    training: Mapping[str, Any] = field(default_factory=dict)  # changes of the board's training

    def sections(self, target: Target) -> dict[str, dict[str, Any]]:
        """The runs that it chooses from at a bound, by key; equal settings have the same key in every method."""
        own = {key_of(point): dict(point) for point in self.points[target.bounds[0].metric]}
        return own | {key_of(point): point for point in (lagrangians(target) if self.aims else {}).values()}


@dataclass(frozen=True)
class Cell:
    """A data set cut into clients."""

    name: str
    settings: Mapping[str, Any]  # sections of a study's configuration

    @property
    def source(self) -> str:
        """The data source."""
        return str(section(self.settings, "data").get("source", "census"))

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")


@dataclass(frozen=True)
class Board:
    """Cells x methods x bounds."""

    title: str
    targets: tuple[Target, ...]
    methods: tuple[Method, ...]
    cells: tuple[Cell, ...]
    study: Mapping[str, Any] = field(default_factory=dict)  # settings that all cells share
    budget: int = 4  # settings that a method may try per metric
    trainings: tuple[Mapping[str, Any], ...] = ({},)  # of all its methods, even those not picked

    @classmethod
    def load(cls, name: str | Path, cells: Sequence[str] = (), methods: Sequence[str] = ()) -> Board:
        """One of our boards by name, or a board in a file; only the named cells and methods if any are named."""
        ours = {file.stem: file for file in sorted(BOARDS.glob("*.toml"))}
        plain = read(ours.get(str(name), Path(name)))
        if "extends" in plain:
            plain = _extended(plain, read(look_up("board", plain["extends"], ours)))
        require_known("part of a board", ("title", "targets", "budget", "study", "methods", "cells"), *plain)
        for key in ("targets", "methods", "cells"):
            require(bool(plain.get(key)), f"The board {str(name)!r} has no {key}: copy one of ours, {', '.join(ours)}.")
        study, budget = section(plain, "study"), plain.get("budget", cls.budget)
        require(isinstance(budget, int), f"The budget of a board must be a whole number; got {short_repr(budget)}.")
        check(study)
        for plugin in study.get("plugins", ()):  # which may register what methods name
            import_plugin(Path(plugin))
        given = section(plain, "methods")
        all_methods = {key: _method(key, section(given, key), budget) for key in given}
        all_cells = {key: Cell(key, section(section(plain, "cells"), key)) for key in section(plain, "cells")}
        _require_folders(all_cells.values())
        for settings in (study, *(cell.settings for cell in all_cells.values())):
            for name in ("algorithms", *AFTER_TRAINING):
                require(
                    name not in settings,
                    f"The methods and targets of a board replace the setting {name!r}: leave it out.",
                )
        return cls(
            plain.get("title", str(name)),
            _targets(plain["targets"]),
            tuple(_picked("method", all_methods, methods)),
            tuple(_picked("cell", all_cells, cells)),
            study,
            budget,
            _distinct(method.training for method in all_methods.values()),
        )

    def configs(self, cell: Cell, changes: Mapping[str, Any], root: str | None) -> dict[int, StudyConfig]:
        """The studies of a cell that the methods choose from, by the index of their training in `trainings`."""
        found = {}
        for place, training in enumerate(self.trainings):
            sections: dict[str, dict[str, Any]] = {}
            for method in self.methods:
                for target in self.targets if method.training == training else ():
                    sections |= method.sections(target)
            if not sections:
                continue
            whole = merged(merged(dict(self.study), {"training": dict(training)}), dict(cell.settings))
            whole = merged(whole, dict(changes))
            data = section(whole, "data")
            if root is not None and source_class(cell.source).needs_files:
                data = {**data, "root": root}
            found[place] = parse({**whole, "data": data, "algorithms": sections, "target": "none"})
        return found


def _extended(added: Mapping[str, Any], board: Mapping[str, Any]) -> dict[str, Any]:
    """A board with the methods and cells of a file that extends it."""
    require_known("part of a file that extends a board", ("extends", "title", "study", "methods", "cells"), *added)
    study = section(added, "study")
    require_known("setting of a file that extends a board", ("study.plugins",), *(f"study.{name}" for name in study))
    parts = {"title": added.get("title", board["title"]), "study": {**board["study"], **study}}
    for kind in ("methods", "cells"):
        own = section(added, kind)
        for name in own:
            require(
                name not in board[kind],
                f"The board {added['extends']!r} has {kind} of its own, and one is named {name!r}: take another name.",
            )
        parts[kind] = {**board[kind], **own}
    return {**board, **parts}


def _targets(texts: Any) -> tuple[Target, ...]:
    """The targets, each different, and each one bound of a metric that methods have settings for."""
    require(isinstance(texts, list), f"The targets of a board must be a list of texts; got {short_repr(texts)}.")
    targets = tuple(map(Target.parse, texts))
    for target in targets:
        require(
            len(target.bounds) == 1 and target.bounds[0].metric in METRICS,
            f"A target of a board must be one bound of {' or '.join(METRICS)}; got '{target}'.",
        )
        require(targets.count(target) == 1, f"The board has the target '{target}' twice.")
    return targets


def _require_folders(cells: Iterable[Cell]) -> None:
    """Refuse cells that would share a folder, and names that give no folder."""
    taken: dict[str, str] = {}
    for cell in cells:
        other = taken.setdefault(cell.slug, cell.name)
        require(
            other == cell.name,
            f"The cells {other!r} and {cell.name!r} would share the folder {cell.slug!r}: rename one.",
        )
        require(bool(cell.slug.strip(".")), f"The cell {cell.name!r} needs a name with letters a to z, or digits.")


def _method(name: str, given: Mapping[str, Any], budget: int) -> Method:
    known = ("title", "algorithm", "settings", *METRICS, "repair", "scope", "aims", "training")
    require_known(f"part of the method {name!r}", known, *given)
    algorithm, aims, repair = given.get("algorithm", name), given.get("aims", False), given.get("repair", "none")
    require(isinstance(aims, bool), f"'aims' of the method {name!r} must be true or false; got {short_repr(aims)}.")
    tries = {metric: given.get(metric, given.get("settings", [{}])) for metric in METRICS}
    for listed in tries.values():
        require(
            isinstance(listed, list) and all(isinstance(one, Mapping) for one in listed),
            f"The settings of {name!r} must be a list such as [{{ penalty = 1.0 }}]; got {short_repr(listed)}.",
        )
    points = {metric: [_point(algorithm, one) for one in listed] for metric, listed in tries.items()}
    for metric, chosen in points.items():
        tried = len(chosen) + 2 * aims
        require(
            0 < tried <= budget, f"The method {name!r} tries {tried} settings for {metric}; the budget is {budget}."
        )
    require_known("kind of repair", KINDS, repair)
    scope = given.get("scope", "federation")
    require_known("scope of a target", get_args(Scope), scope)
    title = given.get("title") or algorithm_class(algorithm).title
    return Method(name, title, points, repair, scope, aims, section(given, "training"))


def _point(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A section of a configuration with its algorithm and the preset that the algorithm's name stands for."""
    name = given.get("name", algorithm)
    usual = algorithm_class(name).default_preset
    return {"name": name, **({} if usual is None else {"preset": usual}), **given}


def key_of(point: Mapping[str, Any]) -> str:
    """The name of a run, made of its algorithm and settings."""
    texts = [f"{key}-{number_text(value) if isinstance(value, float) else value}"
             for key, value in sorted(point.items()) if key != "name"]  # fmt: skip
    return "-".join([str(point["name"]), *texts]).replace("/", "_")


def _distinct(trainings: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    found: list[Mapping[str, Any]] = []
    for one in trainings:
        found += [] if one in found else [one]
    return tuple(found)


def _picked(kind: str, found: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    require_known(f"{kind} of the board", found, *names)
    require(bool(found), f"The board has no {kind}.")
    return [found[name] for name in names] if names else list(found.values())
