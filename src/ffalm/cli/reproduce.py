"""`ffalm reproduce`: the paper's experiments, with the numbers that it reports next to ours."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import Flag, overrides, seeds_of, study_flags, takes
from ffalm.cli.output import print_json, print_results
from ffalm.cli.running import Terminal
from ffalm.errors import UserError, require, require_known
from ffalm.reproduce.choices import CHOICES, WITHOUT_A_ROLE, answers
from ffalm.settings import merged
from ffalm.system.files import write_atomic

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.config import StudyConfig
    from ffalm.report.artifact import Artifact
    from ffalm.reproduce.request import Request
    from ffalm.reproduce.studies import Runner
    from ffalm.studies.results import Study

TARGETS = ("table-2", "table-3", "figure-2", "example", "rate", "sensitivity", "frontier", "all")
_THEORY = ("example", "rate")
_STORED = "reproduce.toml"
_WHAT, _OPEN = "What to run", "What the paper leaves open"


_RUNNING = ("engine", "device", "precision", "workers", "ray", "set", "out", "resume", "json", "quiet")


def _running() -> tuple[Flag, ...]:
    return tuple(flag for flag in study_flags() if flag.name in _RUNNING)


_OWN = (
    Flag("data_root", str | None, "Folder that holds UTKFace/ and celeba/; either may be missing.", _WHAT),
    Flag("only", str | None, "Use one data set only: utkface or celeba.", _WHAT),
    Flag("algorithms", str | None, "Algorithms, comma-separated. Default: all of the paper's.", _WHAT),
    Flag("vary", str | None, "Choices that sensitivity changes, comma-separated. Default: all.", _WHAT),
    Flag("seeds", str | None, "Number of seeds, or a list. Default: 10 as in the paper, 2 for smoke.", _WHAT),
    Flag(
        "scale", str | None, "full (the default), or smoke: a minute on drawn faces, to check the installation.", _WHAT
    ),
    *(
        Flag(
            choice.name.replace("-", "_"),
            str | None,
            f"{choice.question}: {', '.join(choice.options)}. Default: {choice.default}.",
            _OPEN,
        )
        for choice in CHOICES
    ),
)

_LISTS = ("only", "algorithms", "vary")  # flags whose names are joined by commas

#: Flags that have no effect on an experiment, and are therefore refused.
_WITHOUT_EFFECT = {
    **dict.fromkeys(("table-2", "table-3", "figure-2"), ("vary",)),
    **dict.fromkeys(_THEORY, (*(flag.name for flag in _OWN), "engine", "device", "precision", "workers", "ray", "set")),
    "sensitivity": ("algorithms", *WITHOUT_A_ROLE["sensitivity"]),
    "frontier": ("algorithms", "vary", *WITHOUT_A_ROLE["frontier"]),
}


@takes("reproduce", lambda: (*_OWN, *_running()))
def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(help="What to reproduce, from the list above.", show_default=False, metavar="EXPERIMENT"),
    ] = None,
    **values: Any,
) -> None:
    """Run the paper's experiments and compare its numbers with ours.

    - **table-2**: accuracy, demographic parity difference (DPD) and equal opportunity difference (EOD) at alpha 0.3
    - **table-3**: the same at alpha 1 and 5
    - **figure-2**: validation curves of the runs of table 2
    - **example**: the two-client example of the appendix
    - **rate**: the convergence rate, measured
    - **sensitivity**: which choice that the paper leaves open changes which metric
    - **frontier**: settings of FFALM between and beyond the presets, judged on validation rows
    - **all**: all of these
    """
    from rich.console import Console

    from ffalm.studies.study import begin, make_folder
    from ffalm.system import toml

    folder: Path | None = values["out"]
    require(not values["resume"] or folder is not None, "--resume needs the folder to continue in: name it with --out.")
    asked = merged(_stored(folder) if folder and values["resume"] else {}, _given({"target": experiment, **values}))
    target = asked.get("target")
    require(target is not None, f"Say what to reproduce: {', '.join(TARGETS)}.")
    require_known("experiment", TARGETS, target)
    for name in _WITHOUT_EFFECT.get(str(target), ()):
        flag = name.replace("_", "-")
        require(not values[name.replace("-", "_")], f"--{flag} changes nothing in {target}: leave it out.")
    for name in ("data_root", "only") if asked.get("scale") == "smoke" else ():
        flag = name.replace("_", "-")
        require(not values[name], f"--{flag} changes nothing with --scale smoke, which draws its faces: leave it out.")
    request = _request(asked)
    if target not in _THEORY:
        request.sources()
    said = Console(stderr=True)
    wanted = TARGETS[:-1] if target == "all" else (str(target),)
    with _claimed(folder, values["resume"], f"reproduce-{target}") as claimed:
        if not values["quiet"] and not set(wanted) <= set(_THEORY):
            _warn(said, request)
        again = f"ffalm reproduce {target} --out {shlex.quote(str(claimed))} --resume"

        def keep() -> None:
            make_folder(claimed)
            write_atomic(claimed / _STORED, toml.dumps(asked))

        def run(config: StudyConfig, place: Path) -> Study:
            with begin(config, place, (), "share", again, values["ray"]) as begun:
                keep()
                with Terminal(said, begun, again, values["quiet"], clients=False) as terminal:
                    return begun.compute(terminal)

        artifacts = []
        for name in wanted:
            if name in _THEORY:
                keep()
            artifacts.append(_made(name, request, claimed, run))
            if not values["json"]:
                _show(artifacts[-1])
        if values["json"]:
            _print_experiments(claimed, artifacts)


def _warn(console: Console, request: Request) -> None:
    """Warn before a run that takes long or means nothing."""
    from ffalm.reproduce.experiments import SMOKE
    from ffalm.system.hardware import device

    if request.smoke:
        console.print(SMOKE, style="bold", highlight=False, soft_wrap=True)
    elif device(str(request.settings.get("device", "auto"))).type == "cpu":
        console.print(
            "This will run on the CPU, where a round of a ResNet-18 takes minutes and a table has thousands of rounds: "
            "use a GPU, or try it in a minute with --scale smoke.",
            style="bold",
            highlight=False,
            soft_wrap=True,
        )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The settings of the command line, as plain values that a file can store."""
    asked = {name: values[name] for name in ("target", "data_root", "scale", *_LISTS) if values[name] is not None}
    for name in _LISTS:
        require(name not in asked or bool(answers(asked[name])), f"--{name} is empty: give names, or leave it out.")
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


@contextmanager
def _claimed(folder: Path | None, resume: bool, name: str) -> Iterator[Path]:
    """The folder for the results: the given one, or a new one; nothing is overwritten."""
    from ffalm.studies.study import new_folder

    if folder is None:
        made = new_folder(Path("ffalm-results"), f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            yield made
        finally:
            for place in (made, made.parent):
                with suppress(OSError):
                    place.rmdir()  # succeeds only if the folder is empty
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is a file: name a folder.")
    if folder.exists() and any(folder.iterdir()):
        require(resume, f"The folder {folder} is not empty: continue it with --resume, or name another with --out.")
        require((folder / _STORED).exists(), f"The folder {folder} holds no reproduction to resume: name another.")
    yield folder


def _made(name: str, request: Request, folder: Path, run: Runner) -> Artifact:
    """One experiment, without repeating runs that the folder holds."""
    if name in _THEORY:
        from ffalm import theory
        from ffalm.studies.study import make_folder

        make_folder(folder / name)
        return theory.example(folder / name) if name == "example" else theory.rate(folder / name)
    from ffalm.reproduce.experiments import make

    return make(name, request, folder, run)


def _show(artifact: Artifact) -> None:
    """Print the tables, the notes, the choices, and where the files are."""
    lines = [f"Note: {note}" for note in artifact.notes]
    if artifact.choices:
        lines += ["\nWhat the paper leaves open, and what was chosen:", *(f"- {one}" for one in artifact.choices)]
    lines += [f"Written: {path}" for path in artifact.files.values()]
    print_results(artifact.tables, [*lines, ""], "" if artifact.tables else artifact.title)


def _print_experiments(folder: Path, artifacts: list[Artifact]) -> None:
    names = {"experiment": "name", "title": "title", "rows": "values", "notes": "notes", "choices": "choices",
             "files": "files"}  # fmt: skip
    shown = [{name: getattr(artifact, own) for name, own in names.items()} for artifact in artifacts]
    print_json({"folder": folder, "experiments": shown})
