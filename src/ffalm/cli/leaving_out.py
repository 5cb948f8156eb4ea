"""`--leave-out each`: the studies without each site in turn, and their table."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ffalm.cli.output import print_json, print_line
from ffalm.cli.running import run_shown
from ffalm.errors import require

if TYPE_CHECKING:
    from ffalm.config import StudyConfig
    from ffalm.studies.results import Study


def show_each(config: StudyConfig, command: str, values: Mapping[str, Any], optional: Collection[str]) -> None:
    """Compute, or resume, the study of all sites and those without each of them; then print and write the table."""
    from rich.console import Console

    from ffalm.report.rendering import to_rich
    from ffalm.studies.grid import drop_incompatible
    from ffalm.studies.left_out_sites import run_each
    from ffalm.studies.study import make_folder, new_folder
    from ffalm.system import toml
    from ffalm.system.files import write_whole

    folder: Path | None = values["out"]
    begun = folder is not None and folder.is_dir() and any(folder.iterdir())
    require(
        not begun or values["resume"], f"The folder {folder} is not empty: resume it with --resume, or name another."
    )
    if folder is None:
        require(not values["resume"], "--resume needs the folder of the study: name it with --out.")
        folder = new_folder(Path("ffalm-results"), f"{command}-{config.data.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    make_folder(folder)
    whole, left_out = drop_incompatible(_without(config, None), optional)
    write_whole(folder / "config.toml", toml.dumps(_without(whole, config.partition.leave_out).to_plain()))
    console, progress = Console(), Console(stderr=True, quiet=values["quiet"])
    for one in left_out:
        print_line(progress, f"Left out: {one.reason}")

    def run(site: str | None, own: Path, resume: bool) -> Study:
        return run_shown(_without(whole, site), command, {**values, "out": own, "resume": resume}, whole=folder)

    done = run_each(run, folder, lambda name: progress.print(name, highlight=False, markup=False))
    files = done.write()
    if values["json"]:
        named = {name: str(path) for name, path in files.items()}
        print_json({"folder": str(folder), "files": named, "sites": done.records()})
        return
    console.print(to_rich(done.table()))
    print_line(console, f"Table: {files['csv']}; each study: ffalm report {folder}/FOLDER")


def _without(config: StudyConfig, site: str | None) -> StudyConfig:
    return replace(config, partition=replace(config.partition, leave_out=site))
