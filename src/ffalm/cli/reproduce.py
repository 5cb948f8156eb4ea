"""`ffalm reproduce`: the paper's experiments, beside the numbers it reports."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import Flag, overrides, seeds_of, study_flags, takes
from ffalm.cli.running import Terminal
from ffalm.errors import UserError, require, unknown
from ffalm.reproduce.choices import CHOICES, WITHOUT_A_ROLE, answers
from ffalm.settings import merged

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from ffalm.config import StudyConfig
    from ffalm.outcome import StudyOutcome
    from ffalm.reproduce.products import Product
    from ffalm.reproduce.request import Request

TARGETS = {
    "table-2": "accuracy, DPD and EOD on CelebA and UTKFace at alpha 0.3",
    "table-3": "the same at alpha 1 and 5",
    "figure-2": "validation curves of the runs of table 2",
    "example": "the two-client example of the appendix",
    "rate": "the convergence rate, measured",
    "sensitivity": "which choice that the paper leaves open moves which number",
    "frontier": "settings of FFALM between and beyond the presets, judged on validation rows",
    "all": "all of these",
}
_THEORY = ("example", "rate")
_STORED = "reproduce.toml"
_WHAT, _OPEN = "What to run", "What the paper leaves open"


@dataclass(frozen=True)
class _Target(Flag):
    """The experiment, as an argument rather than an option."""

    @property
    def parameter(self) -> inspect.Parameter:
        """The argument as Typer reads it."""
        kind = Annotated[str | None, typer.Argument(help=self.help, show_default=False, metavar="EXPERIMENT")]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


_RUNNING = ("engine", "device", "precision", "workers", "ray", "set", "out", "resume", "json", "quiet")


def _running() -> tuple[Flag, ...]:
    return tuple(flag for flag in study_flags() if flag.name in _RUNNING)


_OWN = (
    _Target("target", str, "What to reproduce, from the list above.", _WHAT),
    Flag("data_root", str | None, "Folder that holds UTKFace/ and celeba/; either may be missing.", _WHAT),
    Flag("only", str | None, "Use this data set alone: utkface or celeba.", _WHAT),
    Flag("algorithms", str | None, "Rows of the tables, with commas; all of the paper's unless said.", _WHAT),
    Flag("vary", str | None, "Open choices that sensitivity changes, with commas; all unless said.", _WHAT),
    Flag("seeds", str | None, "Number of seeds, or a list; 10 as in the paper, 2 for smoke.", _WHAT),
    Flag("scale", str | None, "full, or smoke: a minute on drawn faces to see it work.", _WHAT),
    *(
        Flag(choice.name.replace("-", "_"), str | None, f"{choice.question}: {', '.join(choice.options)}.", _OPEN)
        for choice in CHOICES
    ),
)

_LISTS = ("only", "algorithms", "vary")  # flags whose names are joined by commas

#: Flags that an experiment would not heed; who gives one expects something that will not happen.
_UNHEEDED = {
    **dict.fromkeys(("table-2", "table-3", "figure-2"), ("vary",)),
    **dict.fromkeys(_THEORY, ("algorithms", "vary", "seeds")),
    "sensitivity": ("algorithms", *WITHOUT_A_ROLE["sensitivity"]),
    "frontier": ("algorithms", "vary", *WITHOUT_A_ROLE["frontier"]),
}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    listed = "\n".join(f"- **{name}**: {about}" for name, about in TARGETS.items())
    about = f"{reproduce.__doc__}\n\n{listed}"
    app.command("reproduce", help=about, epilog="Example: ffalm reproduce table-2 --scale smoke")(reproduce)


@takes("reproduce", lambda: (*_OWN, *_running()))
def reproduce(**values: Any) -> None:
    """Run the paper's experiments and put its numbers, ours and the difference side by side."""
    from rich.console import Console

    from ffalm import toml
    from ffalm.files import write_whole
    from ffalm.study import carry_out, make_folder

    folder: Path | None = values["out"]
    require(not values["resume"] or folder is not None, "--resume needs the folder to go on in: name it with --out.")
    asked = merged(_stored(folder) if folder and values["resume"] else {}, _given(values))
    target = asked.get("target")
    require(target is not None, f"Say what to reproduce: {', '.join(TARGETS)}.")
    if target not in TARGETS:
        raise unknown("experiment", str(target), TARGETS)
    for name in _UNHEEDED.get(str(target), ()):
        require(values[name.replace("-", "_")] is None, f"--{name} changes nothing in {target}: leave it out.")
    request = _request(asked)
    if target not in _THEORY:
        request.sources()
    folder = folder or Path("ffalm-results") / f"reproduce-{target}-{time.strftime('%Y%m%d-%H%M%S')}"
    _claim(folder, values["resume"])
    said = Console(stderr=True)

    def keep() -> None:
        make_folder(folder)
        write_whole(folder / _STORED, toml.dumps(asked))

    def run(config: StudyConfig, place: Path) -> StudyOutcome:
        again = f"ffalm reproduce {target} --out {folder} --resume"
        with Terminal(said, lambda _: again, values["quiet"], clients=False, begin=keep) as terminal:
            study = carry_out(config, place, (), "share", terminal.begin, terminal, again, values["ray"])
        return study.outcome

    wanted = [name for name in TARGETS if name != "all"] if target == "all" else [target]
    if not values["quiet"] and not set(wanted) <= set(_THEORY):
        _warn(said, request)
    products = []
    for name in wanted:
        if name in _THEORY:
            keep()
        product = _made(name, request, folder, run)
        products.append(product)
        if not values["json"]:
            _show(Console(), product)
    if values["json"]:
        _print_json(folder, products)


def _warn(console: Console, request: Request) -> None:
    """What a person should know before waiting for the end."""
    from ffalm.hardware import device
    from ffalm.reproduce.products import SMOKE

    if request.smoke:
        console.print(SMOKE, style="bold", highlight=False, soft_wrap=True)
    elif device(str(request.settings.get("device", "auto"))).type == "cpu":
        console.print(
            "This will run on the CPU, where a round of a ResNet-18 takes minutes and a table has thousands of rounds: "
            "use a GPU, or see the same path in a minute with --scale smoke.",
            style="bold",
            highlight=False,
            soft_wrap=True,
        )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """What the command line says, in a form that a file can keep."""
    asked = {name: values[name] for name in ("target", "data_root", "scale", *_LISTS) if values[name] is not None}
    for name in _LISTS:
        require(name not in asked or bool(answers(asked[name])), f"--{name} names nothing: name some, or leave it out.")
    if "data_root" in asked:
        asked["data_root"] = str(Path(asked["data_root"]).resolve())
    if values["seeds"] is not None:
        asked["seeds"] = seeds_of(values["seeds"])
    chosen = {choice.name: values[choice.name.replace("-", "_")] for choice in CHOICES}
    chosen = {name: answer for name, answer in chosen.items() if answer is not None}
    settings = overrides(values, _running())
    model = settings.get("model")
    if isinstance(model, dict) and isinstance(model.get("weights"), str):
        model["weights"] = str(Path(model["weights"]).expanduser().resolve())
    return asked | ({"choices": chosen} if chosen else {}) | ({"settings": settings} if settings else {})


def _stored(folder: Path) -> dict[str, Any]:
    from ffalm.config import read

    return read(folder / _STORED) if (folder / _STORED).exists() else {}


def _request(asked: dict[str, Any]) -> Request:
    from ffalm.reproduce.request import Request

    return Request(
        scale=asked.get("scale", "full"),
        data_root=asked.get("data_root"),
        data=tuple(answers(asked.get("only", ""))),
        algorithms=tuple(answers(asked.get("algorithms", ""))),
        varied=tuple(answers(asked.get("vary", ""))),
        seeds=tuple(asked.get("seeds", ())),
        chosen=asked.get("choices", {}),
        settings=asked.get("settings", {}),
    )


def _claim(folder: Path, resume: bool) -> None:
    """Write over nothing: a folder in use must be resumed."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is a file; name a folder.")
    if folder.exists() and any(folder.iterdir()):
        require(resume, f"The folder {folder} is not empty: go on with it by --resume, or name another with --out.")
        require((folder / _STORED).exists(), f"The folder {folder} holds no reproduction to resume: name another.")


def _made(name: str, request: Request, folder: Path, run: Callable[[StudyConfig, Path], StudyOutcome]) -> Product:
    """One experiment, carried out as far as the folder does not hold it."""
    from ffalm.reproduce import products

    if name in _THEORY:
        return _theory(name, folder / name)
    if name == "figure-2":
        return products.curves(request, folder, run)
    if name == "sensitivity":
        return products.sensitivities(request, folder, run)
    if name == "frontier":
        return products.frontiers(request, folder, run)
    return products.table(name, request, folder, run)


def _theory(name: str, folder: Path) -> Product:
    """The paper's example or rate, which need neither data nor runs."""
    from ffalm import theory
    from ffalm.reproduce.products import Product
    from ffalm.reproduce.sheets import Cell, Section, Sheet
    from ffalm.study import make_folder

    make_folder(folder)
    found = theory.example(folder) if name == "example" else theory.rate(folder)
    rows = [[Cell(text) for text in row] for row in found.rows]
    sheet = Sheet(found.title, list(found.columns), [Section("", rows)], names=len(found.columns), wraps=True)
    values = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return Product(name, found.title, [sheet], list(found.notes), files=dict(found.files), values=values)


def _show(console: Console, product: Product) -> None:
    """Print the tables, what a reader must know, and where the files are."""
    from ffalm.reproduce.sheets import to_rich

    if not product.sheets:
        console.print(product.title, style="bold", highlight=False)
    for sheet in product.sheets:
        console.print(to_rich(sheet))
    for note in product.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    if product.choices:
        console.print("\nWhat the paper leaves open, and what was chosen:", highlight=False)
        for sentence in product.choices:
            console.print(f"- {sentence}", highlight=False, markup=False)
    for path in product.files.values():
        console.print(f"Written: {path}", highlight=False, markup=False, soft_wrap=True)
    console.print()


def _print_json(folder: Path, products: list[Product]) -> None:
    from ffalm.store import json_text

    shown = [
        {
            "experiment": product.name,
            "title": product.title,
            "rows": product.values,
            "notes": product.notes,
            "choices": product.choices,
            "files": {name: str(path) for name, path in product.files.items()},
        }
        for product in products
    ]
    print(json_text({"folder": str(folder), "experiments": shown}, 2))
