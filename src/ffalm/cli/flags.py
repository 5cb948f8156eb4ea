"""Command line flags, most of them derived from the settings dataclasses: one flag per field that has a help text."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from ffalm.data import is_table
from ffalm.errors import UserError, short_repr
from ffalm.run_settings import MOST_SEEDS


@dataclass(frozen=True)
class Flag:
    """One command line option; `path` is the setting it writes, None where a command reads it itself."""

    name: str
    type: Any
    help: str
    panel: str
    path: str | None = None
    default: Any = None
    parse: Callable[[str], Any] | None = None  # converts the text to a setting
    also: str | None = None  # another name for the same option

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as Typer reads it from a function's signature."""
        names = [f"--{name.replace('_', '-')}" for name in (self.name, self.also) if name]
        metavar = "NUMBER|none" if self.parse is literal else None
        option = typer.Option(*names, help=self.help, rich_help_panel=self.panel, metavar=metavar)
        kind: Any = Annotated[self.type, option]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=kind)


_DATA, _RUNNING = "Data", "How to run it"
_COLUMNS = {
    "root": "Folder with the data source's files.",
    "label": "Label column of your file.",
    "group": "Group column of your file; several, comma-separated, are crossed. --set data.against_rest=VALUE compares "
    "one of many groups with the rest.",
    "favourable": "Favourable value of the label.",
    "owner": "Column of your file that says which client owns a row.",
    "drop": "Columns of your file that are not features, comma-separated.",
    "categorical": "Numeric columns of your file that are category codes, comma-separated.",
    "missing": "Missing numbers: refuse them, or fill in the mean. Default: refuse.",
    "decimal": "Decimal separator, a dot or a comma. Default: a dot.",
    "separator": "Column separator. Default: detected from the header.",
    "encoding": "Encoding of your file, e.g. latin-1. Default: UTF-8.",
}
_SOURCE = (
    "Data source (`ffalm data` lists them), or a CSV or Parquet file of your own; several files, comma-separated, are "
    "one client each. Default: census."
)
DATA = (
    Flag("data", str | None, _SOURCE, _DATA),
    *(Flag(name, str | None, help, _DATA, f"data.{name}") for name, help in _COLUMNS.items()),
    Flag("image_size", int | None, "Image size in pixels. Default: the data source's own.", _DATA, "data.size"),
)
SET = Flag("set", list[str] | None, "Any setting by its path, e.g. --set training.lr_step=30.", _RUNNING)
JSON = Flag("json", bool, "Print the results as JSON.", _RUNNING, default=False)
COMMON = (
    Flag("ray", str | None, "Address of a Ray cluster to run on, e.g. 10.0.0.5:6379.", _RUNNING),
    Flag("config", Path | None, "TOML file of settings; flags override it.", _RUNNING),
    SET,
    Flag("plugin", list[str] | None, "Python file that registers your own algorithm.", _RUNNING),
    Flag("track", str | None, "Record each round with a tracker: tensorboard or mlflow.", _RUNNING),
    Flag("out", Path | None, "Folder for all results. Default: a new one in ffalm-results.", _RUNNING),
    Flag("resume", bool, "Resume the study in the folder --out.", _RUNNING, default=False),
    JSON,
    Flag("quiet", bool, "Print no progress.", _RUNNING, default=False),
)


@cache
def study_flags() -> tuple[Flag, ...]:
    """The flags that `run` and `compare` share, made only for these commands, since the partition needs numpy."""
    from ffalm.partition import Partition
    from ffalm.run_settings import Privacy, StudySettings, Training

    return (
        *DATA,
        *(flag for flag in flags_of(Partition, "partition") if flag.name != "alpha"),  # the commands take several
        Flag("model", str | None, "Model: linear, mlp, cnn or resnet18. Default: mlp.", "Training", "model.name"),
        *flags_of(Training, "training", "Training"),
        *flags_of(Privacy, "privacy", "Differential privacy"),
        *flags_of(StudySettings),
        *COMMON,
    )


def seeds_flag(panel: str) -> Flag:
    """The seeds of a study of several."""
    text = "Number of seeds, or a list such as 0,1,2. Default: 5."
    return Flag("seeds", str | None, text, panel, "seeds", parse=seeds_of)


def alpha_flag(several: str = "") -> Flag:
    """The skew of a study, or its skews."""
    text = f"Dirichlet alpha of the partition{several}. Default: 5."
    return Flag("alpha", str | None, text, "Federation", "partition.alpha", parse=alphas_of)


def flags_of(cls: type, section: str = "", panel: str = "") -> Iterator[Flag]:
    """A flag for each field of a settings dataclass that has a help text."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path = f"{section}.{field.name}" if section else field.name
        help, name = field.metadata.get("help"), field.metadata.get("flag")
        if help is None:
            continue
        options = _options(hints[field.name])
        several = len({int, float} & options) and types.NoneType in options
        kind: Any = next((one for one in (bool, int, float) if one in options and not several), str)
        without = any(field.default is one for one in (None, False, dataclasses.MISSING))
        default = "" if without else f" Default: {field.default}."
        where = field.metadata.get("panel", panel)
        yield Flag(name or field.name, kind | None, f"{help}{default}", where, path, parse=literal if several else None)


def _options(hint: Any) -> set[Any]:
    """The types that a type hint allows."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return set(typing.get_args(hint)) if union else {hint}


#: Commands by name whose flags are not known yet.
_pending: dict[str, Callable[[], None]] = {}


def takes(name: str, flags: Callable[[], tuple[Flag, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator for a command with keyword arguments: add these flags to its own, once it is called."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(command, eval_str=True).parameters.values()
        own = [parameter for parameter in given if parameter.kind is not inspect.Parameter.VAR_KEYWORD]

        def sign() -> None:
            parameters = [*own, *(flag.parameter for flag in flags())]
            command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
            command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}

        command.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        _pending[name] = sign
        return command

    return decorate


def prepare(arguments: list[str]) -> None:
    """Make the flags of the commands named on a command line; listing all commands needs none."""
    for name in arguments:
        if name in _pending:
            _pending.pop(name)()


def overrides(values: Mapping[str, Any], flags: tuple[Flag, ...] | None = None) -> dict[str, Any]:
    """The nested settings that the given flags set."""
    settings: dict[str, Any] = {}
    if values.get("data"):
        name = str(values["data"])
        put(settings, "data.source", "table" if is_table(name) else name)
        if is_table(name):
            put(settings, "data.file", name)
    for flag in study_flags() if flags is None else flags:
        value = values.get(flag.name)
        if flag.path is not None and value is not None:
            put(settings, flag.path, flag.parse(value) if flag.parse and isinstance(value, str) else value)
    if values.get("owner") and "partition" in values and values["partition"] is None:
        for name in ("clients", "alpha"):
            if values.get(name) is not None:
                raise UserError(f"--owner says who the clients are: leave --{name} out, or name a --partition as well.")
        put(settings, "partition.kind", "silos")
    if values.get("local_epochs") is not None and values.get("local_steps") is not None:
        raise UserError("--local-epochs and --local-steps exclude each other: give one of them.")
    if values.get("plugin"):
        settings["plugins"] = list(values["plugin"])
    assign(settings, values.get("set") or ())
    return settings


def assign(settings: dict[str, Any], assignments: Iterable[str]) -> None:
    """Write the values of `--set PATH=VALUE` into nested settings."""
    for assignment in assignments:
        path, found, text = assignment.partition("=")
        if not found or not path.strip():
            raise UserError(
                f"--set takes a setting and its value, such as training.lr=0.1; got {short_repr(assignment)}."
            )
        put(settings, path.strip(), literal(text.strip()))


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Write a value at a dotted path of nested settings."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise UserError(f"The setting {short_repr(path)} lies below {short_repr(section)}, which is not a section.")
    settings[name] = value


def literal(text: str) -> Any:
    """A value as TOML reads it, or plain text if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, numbers of thousands of digits, brackets nested too deeply
        return text


def listed(text: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_of(text: str) -> list[int]:
    """`5` means the five seeds 0 to 4; `3,7` means those two."""
    try:
        numbers = [int(name) for name in listed(text)]
    except ValueError:
        raise UserError(
            f"--seeds takes a number of seeds, such as 5, or a list, such as 0,1,2; got {short_repr(text)}."
        ) from None
    if not numbers or ("," not in text and not 1 <= numbers[0] <= MOST_SEEDS):
        raise UserError(f"--seeds takes from 1 to {MOST_SEEDS:,} seeds; got {short_repr(text)}.")
    return numbers if "," in text else list(range(numbers[0]))


def alphas_of(text: str) -> list[float]:
    """One Dirichlet alpha, or several separated by commas."""
    try:
        return [float(name) for name in listed(text)]
    except ValueError:
        raise UserError(
            f"--alpha takes a number or a comma-separated list, such as 0.3,1,5; got {short_repr(text)}."
        ) from None
