"""`ffalm run` and `ffalm compare`: from settings to a folder with runs, tables, curves and a page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ffalm.cli.flags import SHARED, Flag, algorithms_of, alphas_of, either, overrides, put, seeds_of, takes
from ffalm.cli.running import carry_out
from ffalm.errors import UserError, require
from ffalm.settings import merged

if TYPE_CHECKING:
    from ffalm.config import StudyConfig

_WHAT = "What to run"
_COMPARE = (
    Flag("algorithms", str | None, "Algorithms to compare, with commas.", _WHAT),
    Flag("preset", str | None, "Preset of FFALM: safe (unless said), recommended, paper or released-code.", _WHAT),
    Flag("seeds", str | None, "Number of seeds, or a list such as 0,1,2.", _WHAT),
    Flag("alpha", str | None, "Dirichlet skew; several with commas.", "Federation"),
    *SHARED,
)
_RUN = (
    Flag("algorithm", str | None, "Algorithm to run.", _WHAT),
    Flag("preset", str | None, "Preset of FFALM: safe (unless said), recommended, paper or released-code.", _WHAT),
    Flag("seed", int | None, "Seed of the partition, the model and the batches.", _WHAT),
    Flag("alpha", str | None, "Dirichlet skew.", "Federation"),
    *SHARED,
)

#: The study of `ffalm compare` without any flag: every run of it ends well, and FFALM's preset is named.
DEFAULTS: dict[str, Any] = {
    "seeds": [0, 1, 2, 3, 4],
    "data": {"source": "census"},
    "partition": {"kind": "plain", "alpha": 5.0},
}
_CONTENDERS = ("fedavg", "fairfed", "fpfl", "ffalm")
_FFALM_PRESET = "safe"


def add_to(app: typer.Typer) -> None:
    """Register the two commands."""
    app.command("run", epilog="Example: ffalm run --algorithm ffalm --preset safe --rounds 30")(run)
    app.command("compare", epilog="Example: ffalm compare --data loans.csv --label paid --group sex --favourable yes")(
        compare
    )


@takes(_RUN)
def run(**values: Any) -> None:
    """Train one algorithm with one seed."""
    settings = overrides(values)
    if values["seed"] is not None:
        settings["seeds"] = [values["seed"]]
    named = [values["algorithm"]] if values["algorithm"] else []
    _study("run", values, settings, _Choice(named, ("ffalm",)), {"seeds": [0]})


@takes(_COMPARE)
def compare(**values: Any) -> None:
    """Train several algorithms over several seeds and put them side by side in the paper's table."""
    settings = overrides(values)
    if values["seeds"] is not None:
        settings["seeds"] = seeds_of(values["seeds"])
    named = [] if values["algorithms"] is None else algorithms_of(values["algorithms"])
    _study("compare", values, settings, _Choice(named, _CONTENDERS), {})


@dataclass(frozen=True)
class _Choice:
    """Which algorithms flags ask for: those that were named, or else the usual ones of the command."""

    named: list[str]
    usual: tuple[str, ...]

    def names(self, values: dict[str, Any]) -> list[str]:
        """All of them; none where a file says which."""
        return self.named or (list(self.usual) if values["config"] is None else [])

    def optional(self, values: dict[str, Any], settings: dict[str, Any]) -> set[str]:
        """Those that nobody named, neither by itself nor by a setting or a preset of it."""
        if self.named:
            return set()
        spoken_of = {*settings.get("algorithms", {}), *(["ffalm"] if values["preset"] is not None else [])}
        return {*self.names(values)} - spoken_of


def _study(
    command: str, values: dict[str, Any], settings: dict[str, Any], choice: _Choice, base: dict[str, Any]
) -> None:
    """Run a study to its end and show what came out."""
    either(values, "local_epochs", "local_steps")
    if values["alpha"] is not None:
        put(settings, "partition.alpha", alphas_of(values["alpha"]))
    from rich.console import Console

    from ffalm import config as configs
    from ffalm.study import fitting, plans

    asked = ("config", "preset", "algorithm", "algorithms")
    given = bool(settings.keys() - {"workers"}) or any(values.get(name) is not None for name in asked)
    folder: Path | None = values["out"]
    require(not values["resume"] or folder is not None, "--resume needs the folder to go on in: name it with --out.")
    if folder and values["resume"] and not given and (folder / "config.toml").exists():
        optional: set[str] = set()  # whom that study left out, it says itself
        config = configs.parse(merged(configs.read(folder / "config.toml"), settings))
    else:
        optional = choice.optional(values, settings)
        file = configs.read(values["config"]) if values["config"] else {}
        config = configs.parse(_with_defaults(file, settings, choice.names(values), values["preset"], base))
    grid = plans(config)
    require(
        command == "compare" or len(grid) == 1,
        f"`ffalm run` makes one run, and these settings ask for {len(grid)}: use `ffalm compare`.",
    )
    folder = folder or _new_folder(command, config)
    begun = _claimed(folder, values["resume"])
    config = fitting(config, optional)
    if begun:
        _require_same(folder, config)
    again = f"ffalm {command} --out {folder} --resume"
    study = carry_out(config, folder, Console(stderr=True), again, values["quiet"], ray=values["ray"])
    _show(study, folder, values)


def _with_defaults(
    file: dict[str, Any], settings: dict[str, Any], names: list[str], preset: str | None, base: dict[str, Any]
) -> dict[str, Any]:
    """Defaults below the file below the flags; algorithms named by flags replace the file's."""
    below = merged(DEFAULTS, base)
    if "data" in file or "source" in settings.get("data", {}):
        below.pop("data")
    whole = merged(merged(below, file), settings)
    if names:
        asked = whole.get("algorithms", {})
        whole["algorithms"] = {name: asked.get(name, {}) for name in names}
        whole.pop("left_out", None)
        for key in asked:
            require(key in names, f"The settings name the algorithm {key!r}, which is not among {', '.join(names)}.")
    for key, section in whole.get("algorithms", {}).items():
        is_ffalm = isinstance(section, dict) and section.get("name", key) == "ffalm"
        if is_ffalm and (preset is not None or (names and "preset" not in section)):
            section["preset"] = _FFALM_PRESET if preset is None else preset
    return whole


def _new_folder(command: str, config: StudyConfig) -> Path:
    return Path("ffalm-results") / f"{command}-{config.data.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _claimed(folder: Path, resume: bool) -> bool:
    """Write over nothing: a folder in use must be resumed. Whether there is a study in it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is a file; name a folder.")
    if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
        return False  # a study that was killed as it began has left nothing but hidden files
    require(resume, f"The folder {folder} is not empty: go on with it by --resume, or name another with --out.")
    require(
        (folder / "config.toml").exists(), f"The folder {folder} holds no study to resume: name another with --out."
    )
    return True


def _require_same(folder: Path, config: StudyConfig) -> None:
    """A study goes on with the settings it was made with."""
    from dataclasses import replace

    from ffalm import config as configs

    before = configs.parse(configs.read(folder / "config.toml"))
    require(
        replace(before, workers=None) == replace(config, workers=None),
        f"The folder {folder} was made with other settings: resume it without flags, or name another with --out.",
    )


def _show(study: Any, folder: Path, values: dict[str, Any]) -> None:
    """Write the report, then print the table and where everything is."""
    from rich.console import Console

    from ffalm.report import write_report
    from ffalm.report.rendering import to_rich
    from ffalm.report.study_tables import results
    from ffalm.store import json_text

    written = write_report(study, folder)
    if values["json"]:
        runs = [
            {
                "algorithm": outcome.algorithm,
                "label": outcome.label,
                "alpha": outcome.alpha,
                "seed": outcome.seed,
                "test": outcome.test,
                "intervals": outcome.intervals,
                "diverged": outcome.diverged,
                **{name: value for name, value in outcome.history[-1].items() if name == "epsilon"},
            }
            for outcome in study.outcomes
        ]
        files = {name: str(path) for name, path in written.items()}
        print(json_text({"folder": str(folder), "files": files, "notes": study.notes, "runs": runs}, 2))
    else:
        console = Console()
        console.print(to_rich(results(study)))
        for note in study.notes:
            console.print(f"Note: {note}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"Report: {folder / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    diverged = [outcome.diverged for outcome in study.outcomes if outcome.diverged]
    if diverged:
        raise UserError(f"{len(diverged)} of {len(study.outcomes)} runs stopped early. {diverged[0]}")
