"""`ffalm run`, `ffalm compare` and `ffalm report`: from settings to a folder with runs, tables, curves and a page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.cli.flags import Flag, alpha_flag, listed, overrides, seeds_flag, study_flags, takes
from ffalm.cli.output import Json, print_answer, print_json, print_line, print_results, raise_if_diverged
from ffalm.cli.running import run_shown, say
from ffalm.errors import require
from ffalm.settings import merged
from ffalm.system.files import write_atomic
from ffalm.targets.target import DEFAULT, Target

if TYPE_CHECKING:
    from ffalm.config import StudyConfig
    from ffalm.studies.results import Study


_WHAT = "What to run"
_PRESET = Flag("preset", str | None, "Preset of FFALM: safe (the default), recommended, paper or released-code.", _WHAT)
_RATE = {"lr": "For a table of your own and a target it is chosen on held-out rows."}


def _compare_flags() -> tuple[Flag, ...]:
    return (
        Flag(
            "algorithms",
            str | None,
            "Algorithms, comma-separated. Default: fedavg,fairfed,fpfl,ffalm, and two lagrangians: at the target and "
            "at half of it.",
            _WHAT,
        ),
        _PRESET,
        seeds_flag(_WHAT),
        alpha_flag("; comma-separated for several"),
        *_with_help(study_flags(), {**_RATE, "target": f"none: no target. Default: {DEFAULT}, or none with --config."}),
    )


def _with_help(flags: Iterable[Flag], additions: dict[str, str]) -> Iterator[Flag]:
    """Flags, some of whose help says more in this command."""
    for flag in flags:
        yield replace(flag, help=f"{flag.help} {additions[flag.name]}") if flag.name in additions else flag


def _run_flags() -> tuple[Flag, ...]:
    return (
        Flag("algorithm", str | None, "Algorithm to run. Default: ffalm.", _WHAT),
        _PRESET,
        Flag("seed", int | None, "Random seed. Default: 0.", _WHAT),
        alpha_flag(),
        *_with_help(study_flags(), _RATE),
    )


@takes("run", _run_flags)
def run(**values: Any) -> None:
    """Train one algorithm with one seed."""
    settings = overrides(values, _run_flags())
    if values["seed"] is not None:
        settings["seeds"] = [values["seed"]]
    _study("run", values, settings, [values["algorithm"]] if values["algorithm"] else [], ("ffalm",), 1)


@takes("compare", _compare_flags)
def compare(**values: Any) -> None:
    """Compare algorithms over several seeds, and find the most accurate model within a fairness target."""
    from ffalm.studies.study import ALGORITHMS, SEEDS

    settings = overrides(values, _compare_flags())
    given, named = values["algorithms"], listed(values["algorithms"] or "")
    require(
        given is None or bool(named), f"--algorithms takes comma-separated names, such as fedavg,ffalm; got {given!r}."
    )
    _study("compare", values, settings, named, ALGORITHMS, SEEDS)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, a run or a federation.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder for the report. Default: the same.")] = None,
    as_json: Json = False,
) -> None:
    """Rewrite the tables, curves and HTML page of a finished or interrupted study from its folder."""
    from ffalm.studies.results import Study

    require(folder.is_dir(), f"There is no folder {folder}.")
    study = Study.load(folder)
    require(bool(study.results), f"No run in {folder} is finished yet: resume it with --resume first.")
    place = out or folder
    lost = [name for name in ("report.html", "tables.csv", "answer.json") if (place / name).exists()]
    require(
        not lost or out is None or (place / "tables.md").exists(),
        f"The folder {place} holds {', '.join(lost)}, which would be lost, and no report of ours: name another.",
    )
    say("Drawing the report ...")
    _show(study, place, as_json)


def _study(
    command: str,
    values: dict[str, Any],
    from_flags: dict[str, Any],
    named: list[str],
    defaults: tuple[str, ...],
    seeds: int,
) -> None:
    """Run a study to its end and show the results; `defaults` are its algorithms if no flag names any."""
    from ffalm import config as configs
    from ffalm.data.table import Table
    from ffalm.partition import EACH
    from ffalm.studies.grid import plans
    from ffalm.targets.candidates import lagrangians

    also_settings = ("config", "preset", "algorithm", "algorithms")
    names_settings = bool(from_flags.keys() - {"workers"}) or any(
        values.get(name) is not None for name in also_settings
    )
    folder: Path | None = values["out"]
    optional: Collection[str] = ()
    if folder and values["resume"] and not names_settings and (folder / "config.toml").exists():
        complete = merged(configs.read(folder / "config.toml"), from_flags)
    else:
        from_file = configs.read(values["config"]) if values["config"] else {}
        configs.check(merged(from_file, from_flags))
        # A file that names algorithms also says what the target is, or has none.
        file_names_algorithms = bool(configs.section(from_file, "algorithms"))
        names = named or ([] if file_names_algorithms else list(defaults))
        if not named:  # of the default algorithms, those that no flag names
            optional = (
                {*names} - {*from_flags.get("algorithms", {})} - {"ffalm" if values["preset"] is not None else ""}
            )
        basis: dict[str, Any] = {"seeds": list(range(seeds))}
        if command == "compare" and not file_names_algorithms:
            basis["target"] = DEFAULT
        complete = _with_algorithms(merged(merged(basis, from_file), from_flags), names, values["preset"])
        if not named and not file_names_algorithms and command == "compare" and complete["target"] != "none":
            at_target = lagrangians(Target.parse(complete["target"]))
            complete["algorithms"] |= at_target
            optional = {*optional, *at_target}
    config = configs.parse(complete)
    _check_effects(config, values)
    if not values["resume"]:  # an earlier version may have taken them
        config.partition.require_effects(configs.section(complete, "partition"))
    values["free_rate"] = isinstance(config.data, Table) and "lr" not in complete.get("training", {})
    runs = len(plans(config))
    require(
        command == "compare" or runs == 1,
        f"`ffalm run` makes one run, and these settings give {runs}: use `ffalm compare`.",
    )
    if config.partition.leave_out == EACH:
        _show_each(config, command, values, optional)
        return
    study = run_shown(config, command, values, optional)
    say("Drawing the report ...", values["quiet"])
    _show(study, study.folder, values["json"])


def _check_effects(config: StudyConfig, values: Mapping[str, Any]) -> None:
    """Refuse flags that would change nothing."""
    kind = config.partition.kind
    needed = dict.fromkeys(config.partition.without_effect, f"the partition {kind!r} does not use it")
    if config.target is None:
        aim = "there is no fairness target: name one with --target"
        needed |= dict.fromkeys(("repair", "confidence", "target_scope"), aim)
    if not any(entry.algorithm.presets() for entry in config.entries):
        needed["preset"] = "none of these algorithms has presets"
    for name, reason in needed.items():
        flag = name.replace("_", "-")
        then = "; or" if ": " in reason else ":"
        require(values.get(name) is None, f"--{flag} would change nothing, since {reason}{then} leave --{flag} out.")


def _with_algorithms(settings: dict[str, Any], names: list[str], preset: str | None) -> dict[str, Any]:
    """The settings with exactly these algorithms, if any are named, and with FFALM's preset."""
    from ffalm.algorithms import algorithms

    if names:
        asked = settings.get("algorithms", {})
        settings["algorithms"] = {name: asked.get(name, {}) for name in names}
        for key in asked:
            require(key in names, f"The settings name the algorithm {key!r}, which is not among {', '.join(names)}.")
    for key, section in settings.get("algorithms", {}).items():
        cls = algorithms().get(section.get("name", key)) if isinstance(section, dict) else None
        if preset is not None and cls is not None and cls.default_preset is not None:
            section["preset"] = preset
    return settings


def _show_each(config: StudyConfig, command: str, values: Mapping[str, Any], optional: Collection[str]) -> None:
    """Compute or resume the study of all sites and those without each site; then print and write the table."""
    from rich.console import Console

    from ffalm.studies.grid import drop_incompatible
    from ffalm.studies.left_out_sites import run_each
    from ffalm.studies.study import make_folder, new_folder
    from ffalm.system import toml

    folder: Path | None = values["out"]
    begun = folder is not None and folder.is_dir() and any(not one.name.startswith(".") for one in folder.iterdir())
    require(
        not begun or values["resume"], f"The folder {folder} is not empty: resume it with --resume, or name another."
    )
    require(folder is not None or not values["resume"], "--resume needs the folder of the study: name it with --out.")
    whole, left_out = drop_incompatible(_without(config, None), optional)
    plain = _without(whole, config.partition.leave_out).to_plain()
    if values["free_rate"]:  # each study records its own rate in its folder
        del plain["training"]["lr"]
    if folder is None:  # only now that the data is known to be there
        folder = new_folder(Path("ffalm-results"), f"{command}-{config.data.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    elif begun:
        _require_same_settings(folder, plain)
    make_folder(folder)
    write_atomic(folder / "config.toml", toml.dumps(plain))
    progress = Console(stderr=True, quiet=values["quiet"])
    for one in left_out:
        print_line(progress, f"Left out: {one.reason}")

    def run(site: str | None, own: Path, resume: bool) -> Study:
        return run_shown(_without(whole, site), command, {**values, "out": own, "resume": resume}, parent=folder)

    done = run_each(run, folder, lambda name: progress.print(name, highlight=False, markup=False))
    files = done.write()
    if values["json"]:
        print_json({"folder": folder, "files": files, "sites": done.records(), "notes": list(done.notes)})
    else:
        each = f"ffalm report {shlex.quote(str(folder))}/FOLDER"
        print_results([done.table()], [f"Table: {files['csv']}; each study: {each}"])
    raise_if_diverged(done.whole, *done.without.values())


def _require_same_settings(folder: Path, plain: Mapping[str, Any]) -> None:
    """Refuse a folder with other settings or of another command, whose settings would be lost."""
    from ffalm.config import parse, read

    stored = folder / "config.toml"
    if not stored.exists():  # Python's `leave_one_out` writes none
        require(
            (folder / "with-all").is_dir(), f"The folder {folder} holds no study to resume: name another with --out."
        )
        return
    before = read(stored)
    same = replace(parse(before), workers=None) == replace(parse(plain), workers=None)
    require(
        same and ("lr" in before.get("training", {})) == ("lr" in plain["training"]),
        f"The folder {folder} was made with other settings: resume it without flags, or name another.",
    )


def _without(config: StudyConfig, site: str | None) -> StudyConfig:
    return replace(config, partition=replace(config.partition, leave_out=site))


def _show(study: Study, folder: Path, as_json: bool) -> None:
    """Write the report, then print the table and where the files are."""
    from ffalm.report.answer_report import to_plain
    from ffalm.report.study_tables import results

    written, outcome = study.write_report(folder), study.outcome
    if as_json:
        shown = ("algorithm", "label", "alpha", "seed", "test", "intervals", "diverged", "degenerate")
        runs = [
            {name: getattr(one, name) for name in shown}
            | {name: value for name, value in one.history[-1].items() if name == "epsilon"}
            for one in study.results
        ]
        answers = [to_plain(answer) for answer in outcome.answers]
        plain = {"folder": study.folder, "files": written, "notes": outcome.notes, "answers": answers, "runs": runs}
        print_json(plain)
    else:
        print_results([results(outcome)])
        for answer in outcome.answers:
            print_answer(answer)
        lines = [*(f"Note: {note}" for note in outcome.notes), f"Report: {folder / 'report.html'}"]
        usable = [
            one
            for one in outcome.answers
            if one.verdict in ("met with confidence", "met in the sample") and not one.degenerate and not one.together
        ]
        if usable and len(outcome.answers) == 1:
            place, by_group = shlex.quote(str(study.folder)), usable[0].chosen.kind in ("groups", "randomised")
            use = f"`ffalm predict {place} NEW.csv{' --group COLUMN' * by_group}` labels new rows"
            where = " by the thresholds of their groups, which COLUMN holds" * by_group
            if _takes_images(study.folder / study.results[0].place):
                use = f"`ffalm predict {place} FOLDER` labels the images of a folder"
                where = ", in Python with `group=[...]` by the thresholds of their groups" * by_group
            lines.append(f"Next: {use}{where}; `ffalm card {place}` describes the model.")
        print_results([], lines)
    raise_if_diverged(study)


def _takes_images(run: Path) -> bool:
    """Whether the model of a run is given image files."""
    from ffalm.system.files import read_json

    try:
        return bool((read_json(run / "encoding.json")["preprocessing"] or {}).get("images"))
    except (OSError, ValueError, KeyError, AttributeError):  # missing or damaged; the report does not need it
        return False
