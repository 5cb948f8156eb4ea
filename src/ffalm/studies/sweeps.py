"""`ffalm.sweep`: the front of accuracy against a gap that an algorithm reaches over one or more of its settings.

All points are one study: runs that differ only in settings of the server, such as the tolerance of a Lagrangian, are
computed together in one stack.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.algorithms import algorithm_class
from ffalm.config import entry_of, read, section
from ffalm.errors import UserError, require, require_known, short_repr, unknown
from ffalm.plugins import import_plugin
from ffalm.report.fronts import Front, FrontPoint, best_at, fronts_of
from ffalm.settings import number_text, to_plain
from ffalm.studies.results import Study
from ffalm.studies.study import compare
from ffalm.system.files import folder_of
from ffalm.targets.candidates import CONSTRAINTS
from ffalm.targets.target import Target

if TYPE_CHECKING:
    from ffalm.federation import Federation

#: Gaps that accuracy can be drawn against.
METRICS = ("dpd", "eod", "equalized_odds", "accuracy_parity", "predictive_parity")
Values = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A study seen as fronts: one for each algorithm, a point for each choice of its swept settings."""

    study: Study
    metric: str

    def __post_init__(self) -> None:
        check_metric(self.metric)
        alphas = self.study.alphas
        require(len(alphas) == 1, f"A sweep is of one skew: this study has several, {alphas}.")

    @classmethod
    def load(cls, folder: str | Path, metric: str = "dpd") -> Sweep:
        """The sweep in a folder; any study of one skew can be read as one."""
        return cls(Study.load(folder), metric)

    @cached_property
    def fronts(self) -> list[Front]:
        """Each algorithm's points, its front and its hypervolume."""
        settings = read(self.study.folder / "config.toml")
        for plugin in settings.get("plugins", ()):
            import_plugin(Path(plugin))
        entries = [entry_of(key, values) for key, values in section(settings, "algorithms").items()]
        plain = [to_plain(entry.algorithm) for entry in entries]
        members = {}
        for entry, own in zip(entries, plain, strict=True):
            alike = [other for other in plain if other["name"] == own["name"]]
            swept = {name: value for name, value in own.items() if any(other.get(name) != value for other in alike)}
            members[entry.label] = (entry.algorithm.title, swept)
        return fronts_of(self.study.results, members, self.metric)

    def best(self, target: str | Target) -> FrontPoint:
        """The most accurate point within a target such as "dpd <= 0.05", chosen on held-out rows."""
        return best_at(self.fronts, Target.parse(target))[0]

    def write(self, folder: str | Path | None = None) -> dict[str, Path]:
        """Tables (`fronts.md`, `fronts.csv`) and the chart (`fronts.svg`), into the study's folder."""
        from ffalm.report.front_report import write_fronts

        return write_fronts(self.fronts, self.study.folder if folder is None else folder_of(folder))


def sweep(
    data: str | os.PathLike[str] | Federation | Sequence[Federation] = "census",
    algorithms: str | Sequence[str] = "lagrangian",
    over: Mapping[str, Values] | None = None,
    *,
    metric: str = "dpd",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    **keywords: Any,
) -> Sweep:
    """Train an algorithm at several values of its settings, to get the front of accuracy against a gap.

    - `algorithms`: one name or several, whose fronts are compared;
    - `over`: values by setting, such as `{"tolerance": [0, 0.02, 0.05]}`; of several settings all combinations are
      tried. `"ffalm.penalty"` is of that algorithm alone, a bare name of all that have it;
    - `metric`: the gap, such as "dpd". `Lagrangian`, `FedGFT`, `Reductions`, `FedFB` and `FairFed` aim at it, unless
      `settings` says otherwise;
    - `settings`: settings by algorithm that are the same at all points;
    - the other keywords are those of `compare`.
    """
    names = [algorithms] if isinstance(algorithms, str) else algorithms
    named = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    require(named, f"`algorithms` takes the name of an algorithm, or a list of names; got {short_repr(algorithms)}.")
    for given, what in ((over, "over"), (settings, "settings")):
        by_name = given is None or (isinstance(given, Mapping) and all(isinstance(name, str) for name in given))
        require(by_name, f"`{what}` takes a dict by name; got {short_repr(given)}.")
    sections = sections_of(list(names), over or {}, metric, settings or {})
    entries = {key: entry_of(key, values).algorithm for key, values in sections.items()}
    return Sweep(compare(data, entries, **{"target": None, **keywords}), metric)


def sections_of(
    names: Sequence[str], over: Mapping[str, Values], metric: str, settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The algorithms of the sweep's study, one section per point, under a key that names its settings."""
    check_metric(metric)
    require(bool(names), "A sweep needs at least one algorithm.")
    for name in settings:
        require(name in names, f"The settings name the algorithm {name!r}, which is not among {', '.join(names)}.")
        require(isinstance(settings[name], Mapping), f"The settings of {name!r} must be a dict of values by name.")
    knobs = _knobs(names, over)
    sections: dict[str, dict[str, Any]] = {}
    for name, own in knobs.items():
        base = {"name": name, **_aimed(name, metric), **settings.get(name, {})}
        for chosen in itertools.product(*own.values()):
            point = dict(zip(own, chosen, strict=True))
            key = "-".join([name, *(f"{knob}-{_short(value)}" for knob, value in point.items())])
            sections[key] = {**base, **point}
    return sections


def check_metric(metric: str) -> None:
    """Refuse a metric that is not a gap."""
    require_known("gap to draw accuracy against", METRICS, metric)


def _knobs(names: Sequence[str], over: Mapping[str, Values]) -> dict[str, dict[str, Values]]:
    """The values of each algorithm's swept settings."""
    require(bool(over), "A sweep needs a setting and its values, such as tolerance=0,0.02,0.05.")
    found: dict[str, dict[str, Values]] = {name: {} for name in names}
    for path, values in over.items():
        owner, _, knob = path.rpartition(".")
        known = not owner or owner in found
        require(known, f"The sweep over {path!r} is of an algorithm that is not among {', '.join(names)}.")
        points = _listed(values)
        require(bool(points), f"The sweep over {path!r} needs a list of values.")
        takers = [name for name in ([owner] if owner else names) if knob in _settings(name)]
        if not takers:
            raise unknown(
                f"setting of {owner or ', '.join(names)}", knob, {one for name in names for one in _settings(name)}
            )
        for name in takers:
            found[name][knob] = points
    return found


def _listed(values: Any) -> list[Any]:
    try:
        return [] if isinstance(values, str | bytes | Mapping) else list(values)
    except TypeError:
        return []


def _settings(name: str) -> list[str]:
    return [one.name for one in fields(algorithm_class(name))]


def _aimed(name: str, metric: str) -> dict[str, Any]:
    """The settings that make an algorithm aim at the gap that is drawn."""
    if name in ("lagrangian", "fedgft", "reductions") and metric in CONSTRAINTS:
        return {"constraint": CONSTRAINTS[metric]}
    if name in ("fairfed", "fedfb") and metric in ("dpd", "eod"):
        return {"metric": metric if name == "fairfed" else CONSTRAINTS[metric]}
    return {}


def _short(value: Any) -> str:
    text = number_text(value) if isinstance(value, float) else str(value)
    if "/" in text:
        raise UserError(f"The value {text!r} of a sweep cannot be part of a folder's name: leave out '/'.")
    return text
