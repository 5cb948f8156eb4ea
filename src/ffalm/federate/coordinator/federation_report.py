"""A federation's results for people: tables for the terminal and a page in Markdown, both from the run folder."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffalm
from ffalm.data.types import Task
from ffalm.fairness import Tally
from ffalm.federate.coordinator.federation_answer import answer_notes, each_site
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.disclosure import cells
from ffalm.outcome import Record, groups_text
from ffalm.privacy import describe_guarantee
from ffalm.report.answer_report import candidates, sentences, who_pays
from ffalm.report.rendering import print_whole, to_markdown
from ffalm.report.tables import Cell, Column, Section, Table, percent, row
from ffalm.studies.checksums import with_checksum
from ffalm.studies.describe import RECORD
from ffalm.system.files import read_json, write_atomic

if TYPE_CHECKING:
    from ffalm.targets.answer import Answer

_SHOWN = {
    "accuracy": "Accuracy",
    "dpd": "DPD",
    "eod": "EOD",
    "equalized_odds": "Equalised odds",
    "accuracy_parity": "Accuracy parity",
    "worst_group_accuracy": "Worst group's accuracy",
}
_STAR = "* of the rows in the cells that the site sends"
_FITTED_AT_SITES = (
    "This answer is for the federation. For the target at every site, each site with enough held-out rows has fitted "
    "its own thresholds, in thresholds.json of its folder; nobody else knows them or their results."
)
_PER_SITE = ("accuracy", "dpd", "eod")


def notes_on(
    scored: Sequence[str],
    counts: Mapping[str, Counts],
    tally: Tally,
    task: Task,
    refused: Mapping[str, str],
    missing: Mapping[str, str],
    history: Sequence[Record],
) -> list[str]:
    """Notes on which rows and sites are not in the numbers."""
    notes = [f"{reason} It was left out." for reason in refused.values()]
    for site in scored:
        hidden = cells(counts[site].withheld["test"], task)
        if hidden:
            notes.append(
                f"The site {site!r} withholds {_counted(len(hidden), 'cell')} of its test rows, too small to be sent "
                f"({'; '.join(hidden)}): the metrics are of the other rows."
            )
    if scored:
        notes += [
            f"No site sends any test row with {cell}: metrics that compare it are undefined (NaN)."
            for cell in cells(tally.compared().count == 0, task)
        ]
    notes += [
        f"The metrics are without the site {site!r} ({reason})."
        for site, reason in missing.items()
        if site not in refused
    ]
    return [*notes, *absences(history)]


def privacy_notes(epsilon: float, delta: float, secure: bool = False) -> list[str]:
    """The privacy guarantee of a run, and what it does not cover."""
    towards = (
        "This holds against everyone who sees the model, this report or the history, and against the coordinator, "
        "which saw only sums with noise, as long as no site leaves out its share of the noise."
        if secure
        else "This holds against everyone who sees the model, this report or the history, but not against the "
        "coordinator, which sees every answer."
    )
    return [
        f"This run has {describe_guarantee(epsilon, delta)}, including its metrics; these have noise, and so no "
        "intervals.",
        f"{towards} Not covered: how many rows of each label and group a site has, when it took part, and what was "
        "agreed before the first round (categories, and means and spreads of columns).",
    ]


def secure_notes() -> list[str]:
    """What secure aggregation means for the numbers."""
    return [
        "The coordinator saw sums over sites only: it knows no single site's values, and no site's answer was compared "
        "with the others'."
    ]


def absences(history: Sequence[Record]) -> list[str]:
    """Notes on the rounds that sites missed, and on answers that did not count."""
    missed: dict[str, list[int]] = {}
    notes = []
    for record in history:
        for site in record.get("missed", {}):
            missed.setdefault(site, []).append(record["round"])
        for site, reason in record.get("quarantined", {}).items():
            notes.append(f"The answer of the site {site!r} in round {record['round']} did not count: {reason}.")
    absent = [
        f"The site {site!r} missed {_counted(len(rounds), 'round')} of {len(history)}: {_ranges(rounds)}."
        for site, rounds in missed.items()
    ]
    return [*absent, *notes]


def write_report(folder: Path, answer: Answer | None = None, obstacles: Sequence[str] = ()) -> None:
    """Write `report.md` from what a finished run folder holds, with the answer to its target or why there is none."""
    result, sites, task = _read(folder)
    groups = groups_text(task["group"], task["group_names"], task.get("excluded", 0))
    parts = [
        f"# {result['label']} over {len(sites)} sites",
        f"{task['label']} ({task['label_names'][task['favourable']]} is favourable), by {groups}. "
        "Metrics are in percent, of the sites' test rows, from summed counts.",
    ]
    if result["diverged"]:
        parts.append(f"**The training stopped: {result['diverged']}**")
    if result.get("degenerate"):
        parts.append(f"**The model is degenerate, so its gaps are no result: {result['degenerate']}.**")
    together, each = (to_markdown(table).rstrip() for table in _tables(result, sites))
    parts += [f"## All sites together\n\n{together}", f"## Each site\n\n{each}", *([_STAR] if "*" in each else [])]
    if answer is not None:
        parts.append(_answer_section(answer, sites))
    if obstacles or result["notes"]:
        notes = [*obstacles, *result["notes"]]
        parts.append("## What to know\n\n" + "\n".join(f"- {note}" for note in notes))
    write_atomic(folder / "report.md", "\n\n".join(parts) + "\n")


def _answer_section(answer: Answer, sites: Sequence[Mapping[str, Any]]) -> str:

    tables = [who_pays(answer), candidates(answer), each_site(sites, "Each site before and after")]
    shown = [to_markdown(table).rstrip() for table in tables if table is not None]
    return "\n\n".join([f"## Answer to {answer.target}", *sentences(answer), *shown])


def write_record(folder: Path) -> None:
    """Write `study.json`, from which `ffalm report FOLDER` makes the page: the run folder is a study of one run."""
    result, sites, task = _read(folder)
    settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    sections = {name: values for name, values in settings.items() if isinstance(values, dict)}
    fitted = settings.get("scope") == "sites" and settings["rules"]["secure"]  # by each site, which keeps them
    record = {
        "title": f"{result['label']} over {len(sites)} sites",
        "task": {
            "data": task["name"],
            "label": task["label"],
            "favourable": task["label_names"][task["favourable"]],
            "groups": groups_text(task["group"], task["group_names"], task.get("excluded", 0)),
        },
        "choices": {
            f"{part}: {name}": str(value) for part, values in sections.items() for name, value in values.items()
        },
        "clients": [_client(site, task) for site in sites if site["rows"] is not None],
        "runs": ["."],
        "group_names": task["group_names"],
        "excluded": task.get("excluded", 0),
        "favourable": task["favourable"],
        "data_notes": result["notes"],
        "target": settings.get("target"),
        "repair": settings["repair"],
        "scope": "federation" if fitted else settings.get("scope", "federation"),
        "confidence": None if settings["confidence"] == "none" else settings["confidence"],
        "answer_notes": [*answer_notes(sites), *([_FITTED_AT_SITES] if fitted else [])],
        "federated": True,
        "versions": {"ffalm": ffalm.__version__},
        "command": f"ffalm federate run {settings['name']}",
    }
    write_atomic(folder / RECORD, with_checksum(record))


def _client(site: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """A site's training rows, and the shares of the favourable label and of each group where no cell is withheld."""
    counts: list[list[int]] = site["rows"]["train"]
    rows, favourable = site["rows"]["rows"], task["favourable"]
    if sum(map(sum, counts)) != rows:
        return {"client": site["name"], "rows": rows}
    groups = {f"group {name}": sum(of[place] for of in counts) / rows for place, name in enumerate(task["group_names"])}
    label = f"label {task['label_names'][favourable]}"
    return {"client": site["name"], "rows": rows, label: sum(counts[favourable]) / rows, **groups}


def summary(folder: Path, width: int = 100) -> str:
    """The same as plain text, for the terminal."""
    from rich.console import Console

    result, sites, _ = _read(folder)
    console = Console(width=width, no_color=True, highlight=False, force_terminal=False)
    with console.capture() as captured:
        tables = _tables(result, sites, "All sites together (test rows, %)", "Each site (test rows, %)")
        after = each_site(sites, "Each site before and after the answer's thresholds (test rows, %)")
        for table in tables if after is None else (*tables, after):
            print_whole(console, table)
        flawed = [f"The model is degenerate: {result['degenerate']}."] if result.get("degenerate") else []
        for line in ([result["diverged"]] if result["diverged"] else []) + flawed + result["notes"]:
            console.print(f"- {line}", markup=False)
    return captured.get()


def _tables(
    result: Mapping[str, Any], sites: Sequence[Mapping[str, Any]], together: str = "", each: str = ""
) -> tuple[Table, Table]:
    """The metrics of all sites together, and each site's own; the titles are for the terminal."""

    def own(site: Mapping[str, Any], metric: str) -> str:
        """A site's own value, with a mark if it is from only some of its rows."""
        value = (site["test"] or {}).get(metric)
        return (
            "-" if value is None or math.isnan(value) else f"{percent(value)}{'*' * bool(site['withheld'].get('test'))}"
        )

    metrics = []
    for name, title in _SHOWN.items():
        value, (low, high) = result["test"].get(name), result["intervals"].get(name) or (None, None)
        interval = None if low is None or high is None else (low, high)
        metrics.append(row(title, Cell(math.nan if value is None else value, interval=interval)))
    rows = [
        row(
            site["name"],
            "left out" if site["rows"] is None else site["rows"]["rows"],
            *(own(site, name) for name in _PER_SITE),
            _ranges([int(number) for number in site["missed"]]),
            _ranges([int(number) for number in site["quarantined"]]),
            "; ".join(site["withheld"].get("test", [])),
        )
        for site in sites
    ]
    kinds = {"Site": "text", "Training rows": "count", **{_SHOWN[name]: "percent" for name in _PER_SITE}}
    heads = [Column(head, kind) for head, kind in kinds.items()]  # type: ignore[arg-type]
    heads += [Column(head) for head in ("Rounds missed", "Quarantined", "Withheld cells")]
    star = [_STAR] if any("*" in str(cell.value) for one in rows for cell in one.cells) else []
    first = Table(together, [Column("Metric"), Column("Value [95 % interval]", "percent")], [Section(metrics)])
    return first, Table(each, heads, [Section(rows)], notes=star)


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    result, sites, agreed = (read_json(folder / name) for name in ("result.json", "sites.json", "encoding.json"))
    return result, sites["sites"], agreed["task"]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Round numbers as people write them: 3-5, 9."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1].append(number)
        else:
            pieces.append([number])
    return ", ".join(str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces)
