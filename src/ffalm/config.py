"""A study as one frozen value, made from TOML files, flags or keywords and recorded in run folders.

A run is a study of one algorithm and one seed, so `ffalm run` and `ffalm compare` share everything here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ffalm.algorithms import Algorithm, algorithm_class
from ffalm.data import source
from ffalm.data.types import Source
from ffalm.engines import ENGINES
from ffalm.errors import UserError, look_up, require, short_repr, unknown
from ffalm.federation import owners_partition
from ffalm.models import Architecture, architecture
from ffalm.partition import Partition
from ffalm.plugins import import_plugin
from ffalm.run_settings import MOST_SEEDS, Privacy, StudySettings, Training
from ffalm.settings import build, to_plain
from ffalm.studies.in_memory import CustomModel, InMemory
from ffalm.system import toml
from ffalm.targets.candidates import lagrangian_title
from ffalm.targets.target import Target, check_confidence

#: Settings of how and where a run is computed, which change its results by rounding at most.
OF_THE_MACHINE = ("engine", "device", "channels_last", "compiled", "checkpoint_every", "workers", "plugins")
_LONGEST_KEY = 100


#: Settings of the choice among finished runs, which change no run.
AFTER_TRAINING = ("target", "repair", "confidence", "scope")


@dataclass(frozen=True)
class AlgorithmEntry:
    """An algorithm in a study, with its label in tables."""

    key: str  # its section in the file and the name of its run folders
    algorithm: Algorithm
    preset: str | None = None

    def __post_init__(self) -> None:
        require(
            0 < len(self.key) <= _LONGEST_KEY and Path(self.key).name == self.key and self.key.isprintable(),
            f"An algorithm's key is the name of its run folders too, which {short_repr(self.key)} cannot be: leave out "
            f"'/' and control characters, and take at most {_LONGEST_KEY} letters.",
        )

    @property
    def label(self) -> str:
        """The algorithm's title with its preset or the target that it aims at, or the user's own name for it."""
        if self.key != self.algorithm.name:
            return lagrangian_title(self.key, self.algorithm) or self.key
        return self.algorithm.title if self.preset is None else f"{self.algorithm.title} ({self.preset})"

    def to_plain(self) -> dict[str, Any]:
        """The algorithm's section, complete."""
        preset = {} if self.preset is None else {"preset": self.preset}
        return {"name": self.algorithm.name, **preset, **to_plain(self.algorithm)}


@dataclass(frozen=True, kw_only=True)
class StudyConfig(StudySettings):
    """Algorithms x seeds x skews on one data source."""

    entries: tuple[AlgorithmEntry, ...]
    data: Source
    partition: Partition
    alphas: tuple[float, ...]
    plugins: tuple[str, ...] = ()  # Python files that register a user's own algorithms

    def __post_init__(self) -> None:
        require(bool(self.entries), "A study needs at least one algorithm.")
        target = None if self.target in (None, "none") else str(Target.parse(self.target))  # files have no null
        object.__setattr__(self, "target", target)
        labels = [entry.label for entry in self.entries]
        for label in labels:
            require(
                labels.count(label) == 1,
                f"Two algorithms would both be called {label!r} in tables: give one of their sections another name.",
            )
        folders = {entry.key.casefold(): entry.key for entry in self.entries}
        for entry in self.entries:
            other = folders[entry.key.casefold()]
            require(
                other == entry.key,
                f"The algorithms {entry.key!r} and {other!r} differ in the case of letters alone, and on macOS and "
                "Windows their run folders would be one: give one of their sections another name.",
            )
        check_confidence(self.confidence)
        require(bool(self.seeds), "A study needs at least one seed.")
        require(len(self.seeds) <= MOST_SEEDS, f"A study takes at most {MOST_SEEDS:,} seeds; got {len(self.seeds):,}.")
        require(len(set(self.seeds)) == len(self.seeds), f"Seeds must differ from each other; got {list(self.seeds)}.")
        require(min(self.seeds) >= 0, f"Seeds must be 0 or more; got {min(self.seeds)}.")
        require(
            self.privacy is None or self.privacy.noise > 0,
            "Differential privacy needs noise above 0: raise it, or leave the section [privacy] out.",
        )
        look_up("engine", self.engine, {**ENGINES, "auto": None})

    def of_run(self, entry: AlgorithmEntry, alpha: float, seed: int) -> StudyConfig:
        """The study of a single run."""
        return replace(self, entries=(entry,), alphas=(alpha,), seeds=(seed,))

    def to_plain(self) -> dict[str, Any]:
        """The complete nested settings, from which `parse` gives the same study even if defaults change."""
        data = to_plain(self.data)
        return {
            "seeds": list(self.seeds),
            **{name: getattr(self, name) for name in _PLAIN},
            "plugins": list(self.plugins),
            "data": {"source": data.pop("name"), **data},
            "partition": {**to_plain(self.partition), "alpha": list(self.alphas)},
            "model": to_plain(self.model),
            "training": to_plain(self.training),
            **({} if self.privacy is None else {"privacy": to_plain(self.privacy)}),
            "algorithms": {entry.key: entry.to_plain() for entry in self.entries},
        }

    def essence(self) -> dict[str, Any]:
        """The settings that determine the results: all but the machine's, the data's folder and presets' names."""
        left_out = (*OF_THE_MACHINE, *AFTER_TRAINING)
        plain = {name: value for name, value in self.to_plain().items() if name not in left_out}
        plain["data"].pop("root", None)
        for section in plain["algorithms"].values():
            section.pop("preset", None)
        return plain


#: Sections of a configuration, and the settings of a study that stand outside of them.
_SECTIONS = ("data", "partition", "model", "training", "privacy", "algorithms")
_PLAIN = tuple(
    one.name
    for one in dataclasses.fields(StudyConfig)
    if one.name not in (*_SECTIONS, "entries", "alphas", "seeds", "plugins")
)


def read(path: Path) -> dict[str, Any]:
    """The nested settings of a TOML file."""
    return toml.read(path, "configuration file")


def check(settings: Mapping[str, Any]) -> None:
    """Check that a configuration's sections are tables and that names of things are texts.

    Call it before reading nested settings; the values within a section are checked by `build`.
    """
    known = (*_SECTIONS, *_PLAIN, "seeds", "plugins")
    for name in settings:
        if name not in known:
            raise unknown("section or setting", name, known)
    for name in _SECTIONS:
        section(settings, name)
    algorithms = section(settings, "algorithms")
    for key in algorithms:
        chosen = section(algorithms, key, f"algorithms.{key}")
        for name in ("name", "preset"):
            _require_name(chosen.get(name, ""), f"algorithms.{key}.{name}")
    _require_name(section(settings, "data").get("source", ""), "data.source")
    _require_name(section(settings, "model").get("name", ""), "model.name")
    plugins = settings.get("plugins", [])
    require(
        isinstance(plugins, list | tuple), f"The setting 'plugins' must be a list of files; got {short_repr(plugins)}."
    )
    for plugin in plugins:
        _require_name(plugin, "plugins")


def _require_name(value: Any, path: str) -> None:
    require(isinstance(value, str), f"The setting {path!r} must be a text; got {short_repr(value)}.")


def parse(settings: Mapping[str, Any]) -> StudyConfig:
    """A checked study from nested settings, in the form of a TOML file."""
    check(settings)
    plugins = [Path(name) for name in settings.get("plugins", ())]
    for path in plugins:
        import_plugin(path)
    data, division = source_of(section(settings, "data")), section(settings, "partition")
    for name in ("clients", "alpha") if getattr(data, "owner", None) is not None and "kind" not in division else ():
        require(
            name not in division,
            f"The setting 'data.owner' says who the clients are: leave 'partition.{name}' out, or set partition.kind.",
        )
    partition, alphas = partitions_of({**owners_partition(data, division), **division})
    algorithms = section(settings, "algorithms")
    return build(
        StudyConfig,
        {
            "entries": tuple(entry_of(key, values) for key, values in algorithms.items()),
            "data": data,
            "partition": partition,
            "alphas": alphas,
            "seeds": settings.get("seeds", (0,)),
            "model": model_of(section(settings, "model")),
            "training": build(Training, section(settings, "training"), "training"),
            "privacy": privacy_of(section(settings, "privacy")),
            "plugins": [str(path.resolve()) for path in plugins],
            **{name: settings[name] for name in _PLAIN if name in settings},
        },
        "study",
    )


def section(settings: Mapping[str, Any], name: str, path: str | None = None) -> dict[str, Any]:
    """A section of nested settings, empty if it is left out; `path` is its name in messages."""
    found, path = settings.get(name, {}), path or name
    if not isinstance(found, Mapping):
        raise UserError(f"The part {path!r} of a configuration must be a section, [{path}]; got {short_repr(found)}.")
    return dict(found)


def partitions_of(settings: Mapping[str, Any]) -> tuple[Partition, tuple[float, ...]]:
    """A study's partition, and its one or more values of alpha, from their section."""
    given = settings.get("alpha", Partition.alpha)
    alphas = given if isinstance(given, list | tuple) else [given]
    require(bool(alphas), "The partition's alpha needs at least one value.")
    partitions = [build(Partition, {**settings, "alpha": alpha}, "partition") for alpha in alphas]
    return partitions[0], tuple(dict.fromkeys(partition.alpha for partition in partitions))


def source_of(settings: Mapping[str, Any]) -> Source:
    """A data source from its section."""
    own = {key: settings[key] for key in settings if key != "source"}
    name = settings.get("source", "census")
    return cast(Source, build(InMemory, own, "data")) if name == InMemory.name else source(name, **own)


def entry_of(key: str, values: Any) -> AlgorithmEntry:
    """An algorithm from its section: registered name (the key, unless given), preset, and settings on top of it.

    Without a preset it is the one that the bare name stands for, as in commands, unless all that it sets is given: so
    are the complete sections that studies and federations keep.
    """
    settings = section({key: values}, key)
    cls = algorithm_class(settings.pop("name", key))
    presets: dict[str, dict[str, Any]] = cls.presets()
    usual = cls.default_preset
    implied = usual if usual is not None and not presets[usual].keys() <= settings.keys() else None
    preset = settings.pop("preset", implied)
    base = {} if preset is None else look_up(f"preset of {cls.title}", preset, presets)
    return AlgorithmEntry(key, build(cls, {**base, **settings}, f"algorithm {key!r}"), preset)


def model_of(settings: Mapping[str, Any], folder: Path | None = None) -> Architecture:
    """A model from its section; a relative path of weights is relative to the folder."""
    own = {key: settings[key] for key in settings if key != "name"}
    if settings.get("name") == "custom":
        return build(CustomModel, own, "model")
    if isinstance(own.get("weights"), str):
        own["weights"] = str(((folder or Path()) / Path(own["weights"]).expanduser()).absolute())
    return architecture(settings.get("name", "mlp"), own)


def privacy_of(settings: Mapping[str, Any]) -> Privacy | None:
    """Differential privacy from its section; None if the section is empty or left out."""
    return build(Privacy, settings, "privacy") if settings else None
