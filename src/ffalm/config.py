"""What a study is, as one frozen value that TOML files and flags are turned into and that run folders record.

A run is a study of one algorithm and one seed, so `ffalm run` and `ffalm compare` share everything here.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ffalm.algorithms import Algorithm, algorithm_class
from ffalm.data import source
from ffalm.data.types import Source
from ffalm.engines import ENGINES, Precision, Training
from ffalm.errors import UserError, require, unknown
from ffalm.keeping import Keep
from ffalm.models import ARCHITECTURES, Architecture, Pretrained, architecture
from ffalm.partition import Partition
from ffalm.privacy import Privacy
from ffalm.settings import build


@dataclass(frozen=True)
class Contender:
    """An algorithm in a study, with the label under which tables show it."""

    key: str  # its section in the file and its folder's name
    algorithm: Algorithm
    preset: str | None = None

    @property
    def label(self) -> str:
        """The algorithm's title and preset, or the user's own name for it."""
        if self.key != self.algorithm.name:
            return self.key
        return self.algorithm.title if self.preset is None else f"{self.algorithm.title} ({self.preset})"


@dataclass(frozen=True)
class StudyConfig:
    """Algorithms x seeds x skews on one data source."""

    contenders: tuple[Contender, ...]
    data: Source
    partition: Partition
    alphas: tuple[float, ...]
    seeds: tuple[int, ...]
    model: Architecture
    training: Training
    privacy: Privacy | None = None
    keep: Keep = "last"  # whose round's model is scored on the test part
    fresh_data: bool = False  # each seed draws the data, or their split, anew, so that spreads include that chance too
    engine: str = "auto"
    device: str = "auto"
    precision: Precision = "fp32"
    channels_last: bool | None = None
    compiled: bool = False
    checkpoint_every: int = 1  # rounds; more than 1 saves time where a model is large and a round short
    workers: int | None = None  # processes; None takes one a core
    plugins: tuple[str, ...] = field(default=())  # files that register a user's own algorithms
    left_out: tuple[Contender, ...] = ()  # of the usual algorithms, those that cannot take the data; a report says why

    def __post_init__(self) -> None:
        require(bool(self.contenders), "A study needs at least one algorithm.")
        labels = [contender.label for contender in self.contenders]
        for label in labels:
            require(
                labels.count(label) == 1,
                f"Two algorithms would both be called {label!r}, and tables would take them for one: name one of their "
                "sections differently.",
            )
        require(bool(self.seeds), "A study needs at least one seed.")
        require(len(set(self.seeds)) == len(self.seeds), f"Seeds must differ from each other; got {list(self.seeds)}.")
        require(min(self.seeds) >= 0, f"Seeds must be 0 or more; got {min(self.seeds)}.")
        require(self.workers is None or self.workers >= 1, f"A study needs at least 1 worker; got {self.workers}.")
        require(self.checkpoint_every >= 1, f"'checkpoint_every' must be at least 1; got {self.checkpoint_every}.")
        if self.engine != "auto" and self.engine not in ENGINES:
            raise unknown("engine", self.engine, [*ENGINES, "auto"])

    def partition_at(self, alpha: float) -> Partition:
        """The partition of one of the study's skews."""
        return replace(self.partition, alpha=alpha)


_PLAIN = (
    "keep",
    "fresh_data",
    "engine",
    "device",
    "precision",
    "channels_last",
    "compiled",
    "checkpoint_every",
    "workers",
)
_TOP = ("seeds", *_PLAIN, "plugins", "data", "partition", "model", "training", "privacy", "algorithms", "left_out")


def read(path: Path) -> dict[str, Any]:
    """The nested settings of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration file {path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The configuration file {path} is not valid TOML: {error}.") from None


def parse(settings: Mapping[str, Any]) -> StudyConfig:
    """A checked study from nested settings, as they stand in a TOML file."""
    for name in settings:
        if name not in _TOP:
            raise unknown("section or setting", name, _TOP)
    plugins = tuple(str(name) for name in settings.get("plugins", ()))
    for name in plugins:
        import_plugin(Path(name))
    data = section(settings, "data")
    cut = section(settings, "partition")
    alphas = cut.pop("alpha", Partition().alpha)
    alphas = tuple(alphas) if isinstance(alphas, list | tuple) else (alphas,)
    require(bool(alphas), "The partition's alpha needs at least one value.")
    partitions = [build(Partition, {**cut, "alpha": alpha}, "partition") for alpha in alphas]
    top = {key: settings[key] for key in _PLAIN if key in settings}
    origin = data.pop("source", "census")
    return build(
        StudyConfig,
        {
            "contenders": _contenders(settings, "algorithms"),
            "data": source(origin, **data),
            "partition": partitions[0],
            "alphas": tuple(dict.fromkeys(partition.alpha for partition in partitions)),
            "seeds": settings.get("seeds", (0,)),
            "model": model_of(section(settings, "model")),
            "training": build(Training, section(settings, "training"), "training"),
            "privacy": privacy_of(section(settings, "privacy")),
            "plugins": plugins,
            "left_out": _contenders(settings, "left_out"),
            **top,
        },
        "study",
    )


def settings_of(config: StudyConfig) -> dict[str, Any]:
    """The complete nested settings of a study: `parse` gives the study back, whatever the defaults become."""
    return {
        "seeds": list(config.seeds),
        **{key: getattr(config, key) for key in _PLAIN},
        "plugins": [str(Path(name).resolve()) for name in config.plugins],
        "data": {"source": config.data.name, **fields_of(config.data)},
        "partition": {**fields_of(config.partition), "alpha": list(config.alphas)},
        "model": settings_of_model(config.model),
        "training": fields_of(config.training),
        **({} if config.privacy is None else {"privacy": fields_of(config.privacy)}),
        "algorithms": {contender.key: settings_of_contender(contender) for contender in config.contenders},
        **({"left_out": {one.key: settings_of_contender(one) for one in config.left_out}} if config.left_out else {}),
    }


def section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A part of nested settings, empty where it is left out."""
    found = settings.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"The part {name!r} of a configuration must be a section, [{name}]; got {found!r}.")
    return dict(found)


def _contenders(settings: Mapping[str, Any], name: str) -> tuple[Contender, ...]:
    """The algorithms whose sections lie below this one."""
    return tuple(contender_of(key, values) for key, values in section(settings, name).items())


def contender_of(key: str, values: Any) -> Contender:
    """An algorithm from its section: registered name (the key, unless said), preset, and settings on top of it."""
    require(
        bool(key) and Path(key).name == key,
        f"An algorithm's section is the name of its run folders too, which {key!r} cannot be: use a name without '/'.",
    )
    settings = section({key: values}, key)
    cls = algorithm_class(settings.pop("name", key))
    preset = settings.pop("preset", None)
    presets: dict[str, dict[str, Any]] = cls.presets()
    if preset is not None and preset not in presets:
        raise unknown(f"preset of {cls.title}", str(preset), presets)
    base = presets[preset] if preset is not None else {}
    return Contender(key, build(cls, {**base, **settings}, f"algorithm {key!r}"), preset)


def settings_of_contender(contender: Contender) -> dict[str, Any]:
    """An algorithm's section, complete."""
    preset = {} if contender.preset is None else {"preset": contender.preset}
    return {"name": contender.algorithm.name, **preset, **fields_of(contender.algorithm)}


def model_of(settings: Mapping[str, Any], folder: Path | None = None) -> Architecture:
    """A model from its section: its name and its settings; a file of weights lies in the folder, unless said fully."""
    own = {key: settings[key] for key in settings if key != "name"}
    if isinstance(own.get("weights"), str):
        own["weights"] = str(((folder or Path()) / Path(own["weights"]).expanduser()).absolute())
    return architecture(settings.get("name", "mlp"), own)


def settings_of_model(model: Architecture) -> dict[str, Any]:
    """A model's section, complete."""
    if isinstance(model, Pretrained):
        return {**settings_of_model(model.architecture), "weights": model.weights}
    names = {cls: name for name, cls in ARCHITECTURES.items()}
    return {"name": names[type(model)], **fields_of(model)}


def privacy_of(settings: Mapping[str, Any]) -> Privacy | None:
    """Differential privacy from its section; none where the section is empty or left out."""
    return build(Privacy, settings, "privacy") if settings else None


def fields_of(settings: Any) -> dict[str, Any]:
    """Every setting with its value; a text that was left out stays out, since "none" would be a text too."""
    hints = typing.get_type_hints(type(settings))
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        name: value for name, value in values.items() if value is not None or str not in typing.get_args(hints[name])
    }


def import_plugin(path: Path) -> None:
    """Run a user's Python file so that the algorithms in it register themselves."""
    require(path.is_file(), f"There is no plugin file {path}.")
    spec = importlib.util.spec_from_file_location(f"ffalm_plugin_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"The plugin file {path} cannot be used: {type(error).__name__}: {error}.") from error


__all__ = [
    "Contender",
    "StudyConfig",
    "contender_of",
    "fields_of",
    "import_plugin",
    "model_of",
    "parse",
    "privacy_of",
    "read",
    "section",
    "settings_of",
    "settings_of_contender",
    "settings_of_model",
]
