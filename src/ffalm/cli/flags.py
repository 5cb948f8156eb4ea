"""The flags that `run` and `compare` share, as one table: what each is called and which setting it overrides."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ffalm.data import is_table
from ffalm.errors import UserError


@dataclass(frozen=True)
class Flag:
    """One command line option; `path` is the setting it writes, None where a command reads it itself."""

    name: str
    type: Any
    help: str
    panel: str
    path: str | None = None
    default: Any = None

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as Typer reads it from a function's signature."""
        declared = f"--{self.name.replace('_', '-')}"
        option = typer.Option(declared, help=self.help, rich_help_panel=self.panel)
        kind = Annotated.__class_getitem__((self.type, option))  # type: ignore[attr-defined]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=kind)


_DATA, _FEDERATION, _TRAINING, _PRIVACY = "Data", "Federation", "Training", "Differential privacy"
_STUDY, _RUNNING = "What to run", "How to run it"

SHARED = (
    Flag(
        "data",
        str | None,
        "A source (see `ffalm data`), or a CSV or Parquet file of your own (see `ffalm data describe table`).",
        _DATA,
    ),
    Flag("root", str | None, "Folder that holds the source's files.", _DATA, "data.root"),
    Flag("label", str | None, "Your file's label column.", _DATA, "data.label"),
    Flag(
        "group",
        str | None,
        "Your file's group column; --set data.against_rest=VALUE compares one of many groups with the rest.",
        _DATA,
        "data.group",
    ),
    Flag("favourable", str | None, "The label value that people want.", _DATA, "data.favourable"),
    Flag("owner", str | None, "Your file's column that says which client owns a row.", _DATA, "data.owner"),
    Flag("image_size", int | None, "Side of the images in pixels.", _DATA, "data.size"),
    Flag("clients", int | None, "Number of clients.", _FEDERATION, "partition.clients"),
    Flag("partition", str | None, "plain, even, balanced, group, iid or silos.", _FEDERATION, "partition.kind"),
    Flag("min_rows", int | None, "Fewest training rows a client may have.", _FEDERATION, "partition.min_rows"),
    Flag("model", str | None, "linear, mlp, cnn or resnet18.", _TRAINING, "model.name"),
    Flag("rounds", int | None, "Communication rounds.", _TRAINING, "training.rounds"),
    Flag(
        "local_epochs",
        int | None,
        "Passes over its rows that a client makes a round.",
        _TRAINING,
        "training.local_epochs",
    ),
    Flag(
        "local_steps",
        int | None,
        "Batches a client trains on a round, instead of passes.",
        _TRAINING,
        "training.local_steps",
    ),
    Flag("batch_size", int | None, "Rows a batch.", _TRAINING, "training.batch_size"),
    Flag("lr", float | None, "Learning rate.", _TRAINING, "training.lr"),
    Flag("clip", float | None, "Largest norm of a step's gradient.", _TRAINING, "training.clip"),
    Flag("keep", str | None, "Whose round's model: last, or best on the validation part.", _TRAINING, "keep"),
    Flag("participation", float | None, "Share of clients that train in a round.", _TRAINING, "training.participation"),
    Flag(
        "noise", float | None, "Differential privacy: noise, in units of a client's share.", _PRIVACY, "privacy.noise"
    ),
    Flag("privacy_clip", float | None, "Largest norm of a client's change of the model.", _PRIVACY, "privacy.clip"),
    Flag("delta", float | None, "The delta for which epsilon is told.", _PRIVACY, "privacy.delta"),
    Flag("engine", str | None, "auto, or an engine by name.", _RUNNING, "engine"),
    Flag("device", str | None, "auto, cpu or cuda.", _RUNNING, "device"),
    Flag("precision", str | None, "fp32, or on a GPU tf32 or bf16 for speed.", _RUNNING, "precision"),
    Flag("workers", int | None, "Processes; one a core unless said.", _RUNNING, "workers"),
    Flag("ray", str | None, "Address of a Ray cluster to compute on, e.g. 10.0.0.5:6379.", _RUNNING),
    Flag("config", Path | None, "TOML file of settings; flags override it.", _RUNNING),
    Flag("set", list[str] | None, "Any setting by its path, e.g. --set training.lr_step=30.", _RUNNING),
    Flag("plugin", list[str] | None, "Python file that registers your own algorithm.", _RUNNING),
    Flag("out", Path | None, "Folder for everything that comes out.", _RUNNING),
    Flag("resume", bool, "Go on with what the folder --out holds.", _RUNNING, default=False),
    Flag("json", bool, "Print the results as JSON.", _RUNNING, default=False),
    Flag("quiet", bool, "Print no progress.", _RUNNING, default=False),
)


def takes(flags: tuple[Flag, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: give a command that takes keyword arguments the signature of these flags."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = [flag.parameter for flag in flags]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def overrides(values: Mapping[str, Any], flags: tuple[Flag, ...] = SHARED) -> dict[str, Any]:
    """The nested settings that the given flags ask for; empty where none was given."""
    settings: dict[str, Any] = {}
    if values.get("data"):
        name = str(values["data"])
        table = is_table(name)
        put(settings, "data.source", "table" if table else name)
        if table:
            put(settings, "data.file", name)
    for flag in flags:
        if flag.path is not None and values.get(flag.name) is not None:
            put(settings, flag.path, values[flag.name])
    if values.get("owner") and not values.get("partition"):
        for name in ("clients", "alpha"):
            if values.get(name) is not None:
                raise UserError(f"--owner says who the clients are: leave --{name} out, or name a --partition as well.")
        put(settings, "partition.kind", "silos")
    if values.get("plugin"):
        settings["plugins"] = list(values["plugin"])
    for assignment in values.get("set") or ():
        path, found, text = assignment.partition("=")
        if not found or not path.strip():
            raise UserError(f"--set takes a setting and its value, such as training.lr=0.1; got {assignment!r}.")
        put(settings, path.strip(), literal(text.strip()))
    return settings


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Write a value at a dotted path of nested settings."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise UserError(f"The setting {path!r} lies below {section!r}, which is not a section.")
    settings[name] = value


def literal(text: str) -> Any:
    """A value as TOML would read it, and plain text where it would not."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def either(values: Mapping[str, Any], one: str, other: str) -> None:
    """Refuse two flags that contradict each other, rather than let one win unseen."""
    if values[one] is not None and values[other] is not None:
        flags = [f"--{name.replace('_', '-')}" for name in (one, other)]
        raise UserError(f"{flags[0]} and {flags[1]} exclude each other: give one of them.")


def algorithms_of(text: str) -> list[str]:
    """The algorithms in a list that was typed with commas, at least one."""
    names = listed(text)
    if not names:
        raise UserError(f"--algorithms takes names with commas, such as fedavg,ffalm; got {text!r}.")
    return names


def listed(text: str) -> list[str]:
    """The names in a list that was typed with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_of(text: str) -> list[int]:
    """`5` means the five seeds 0 to 4; `3,7` means those two."""
    try:
        numbers = [int(name) for name in listed(text)]
    except ValueError:
        raise UserError(
            f"--seeds takes a number of seeds, such as 5, or a list, such as 0,1,2; got {text!r}."
        ) from None
    if not numbers or ("," not in text and numbers[0] < 1):
        raise UserError(f"--seeds takes at least 1 seed; got {text!r}.")
    return numbers if "," in text else list(range(numbers[0]))


def alphas_of(text: str) -> list[float]:
    """One Dirichlet alpha or several with commas."""
    try:
        return [float(name) for name in listed(text)]
    except ValueError:
        raise UserError(f"--alpha takes a number, or several with commas, such as 0.3,1,5; got {text!r}.") from None
