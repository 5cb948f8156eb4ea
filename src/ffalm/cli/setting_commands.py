"""`ffalm settings`, `ffalm models` and `ffalm init`: the settings, and a configuration file with them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ffalm.cli.output import Json, print_json, print_table
from ffalm.cli.setting_words import SETTING_HEADS, settings_of
from ffalm.errors import look_up, require
from ffalm.system.files import write_atomic

_STUDY = "study"  # the name for settings outside of all sections
_FILE = Path("ffalm.toml")


def models(as_json: Json = False) -> None:
    """List the models and their settings."""
    from ffalm.models import ARCHITECTURES

    found = {name: (_about(cls), settings_of(cls)) for name, cls in ARCHITECTURES.items()}
    if as_json:
        print_json(
            {name: {"about": about, "settings": [asdict(one) for one in own]} for name, (about, own) in found.items()}
        )
        return
    from rich.console import Console

    rows: list[tuple[str, ...]] = []
    for name, (about, own) in found.items():
        first, *others = [one.cells for one in own] or [("", "", "", "")]
        rows += [(name, about, *first), *(("", "", *cells) for cells in others)]
    console = Console()
    print_table(console, "Models", ("model", "what it is", *SETTING_HEADS), rows)
    for line in (
        "Choose one with --model NAME; settings with --set model.SETTING=VALUE.",
        "Any of them starts from pretrained weights with --set model.weights=FILE.",
    ):
        console.print(line, highlight=False, markup=False)


def settings(
    section: Annotated[
        str | None, typer.Argument(help="Section: study, data, partition, model, training or privacy. Default: all.",
                                   show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List every setting of a study with its default, by section of a configuration file."""
    from ffalm.cli.setting_facts import sections

    found = {one.name or _STUDY: one for one in sections()}
    asked = found if section is None else {section: look_up("section of settings", section, found)}
    if as_json:
        print_json(
            {name: {"about": one.about, "settings": [asdict(own) for own in one.settings]}
             for name, one in asked.items()}
        )  # fmt: skip
        return
    from rich.console import Console

    console = Console()
    for name, one in asked.items():
        path = "SETTING" if name == _STUDY else f"{name}.SETTING"
        title = f"{'Top of the file' if name == _STUDY else f'[{name}]'}: --set {path}=VALUE"
        print_table(console, title, (*SETTING_HEADS, "flag"), [(*own.cells, own.flag or "") for own in one.settings])
        console.print(one.about, highlight=False, markup=False)
    console.print("Settings of algorithms: ffalm algorithms NAME, --set algorithms.NAME.SETTING=VALUE",
                  highlight=False, markup=False)  # fmt: skip


def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = _FILE,
) -> None:
    """Write a configuration file with every setting, its default and its meaning, to edit and run."""
    from ffalm.cli.setting_facts import configuration

    require(not file.exists(), f"The file {file} exists: name another, or remove it first.")
    write_atomic(file, configuration())
    typer.echo(f"Wrote {file}. Edit it, then run: ffalm compare --config {file}")


def _about(cls: Any) -> str:
    """The first sentence of a class's docstring."""
    return " ".join(str(cls.__doc__).split()).partition(". ")[0].rstrip(".")
