"""What a federation came to, for people: a table for the terminal and a page in Markdown, both from the run folder."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ffalm
from ffalm.data.types import Task
from ffalm.fairness import Tally
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.disclosure import cells
from ffalm.files import write_whole
from ffalm.outcome import Record
from ffalm.privacy import describe_guarantee

_SHOWN = {
    "accuracy": "Accuracy",
    "dpd": "DPD",
    "eod": "EOD",
    "equalized_odds": "Equalised odds",
    "accuracy_parity": "Accuracy parity",
    "worst_group_accuracy": "Worst group's accuracy",
}
_STAR = "* of the rows in the cells that the site tells"
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
    """What a reader of the numbers must know: which rows are not in them, and who was not there."""
    notes = [f"{reason} It was left out." for reason in refused.values()]
    for site in scored:
        hidden = cells(counts[site].withheld["test"], task)
        if hidden:
            notes.append(
                f"The site {site!r} withholds {_counted(len(hidden), 'cell')} of its test rows, too small to be told "
                f"({'; '.join(hidden)}): the metrics are of the other rows."
            )
    if scored:
        notes += [
            f"No site tells of any test row with {cell}: metrics that compare it are undefined (NaN)."
            for cell in cells(tally.count == 0, task)
        ]
    notes += [f"The site {site!r} did not score the final model ({reason})." for site, reason in missing.items()]
    return [*notes, *_absences(history)]


def privacy_notes(epsilon: float, delta: float) -> list[str]:
    """What everything that the run gave out tells about any one site, and what that number does not cover."""
    return [
        f"This run has {describe_guarantee(epsilon, delta)}, its metrics included; they have noise, and no interval "
        "allows for it.",
        "That holds towards all who see the model, this report or the history, not towards the coordinator, who sees "
        "every answer. Not covered: how many rows of each label and group a site has, when it took part, and what was "
        "agreed before the first round (categories, and means and spreads of columns).",
    ]


def secure_notes() -> list[str]:
    """What secure aggregation means for the numbers."""
    return [
        "The coordinator saw sums over sites only: it knows no single site's values, and no site's answer was compared "
        "with the others'."
    ]


def _absences(history: Sequence[Record]) -> list[str]:
    """Who missed which rounds, and whose answers did not count."""
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


def write_report(folder: Path) -> None:
    """Write `report.md` from what a finished run folder holds."""
    result, sites, task = _read(folder)
    parts = [
        f"# {result['label']} over {len(sites)} sites",
        f"{task['label']} ({task['label_names'][task['favourable']]} is favourable), by {task['group']}: "
        f"{', '.join(task['group_names'])}. Metrics are in percent, of the sites' test rows, from summed counts.",
    ]
    if result["diverged"]:
        parts.append(f"**The training stopped: {result['diverged']}**")
    parts.append("## All sites together\n\n" + _markdown(("Metric", "Value", "95 % interval"), _metrics(result)))
    rows = _site_rows(sites)
    parts.append("## Each site\n\n" + _markdown(_SITE_COLUMNS, rows) + (f"\n\n{_STAR}" if _starred(rows) else ""))
    if result["notes"]:
        parts.append("## What to know\n\n" + "\n".join(f"- {note}" for note in result["notes"]))
    write_whole(folder / "report.md", "\n\n".join(parts) + "\n")


def write_record(folder: Path) -> None:
    """Write `study.json`, from which `ffalm report FOLDER` makes the page: the run folder is a study of one run."""
    result, sites, task = _read(folder)
    settings = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    sections = {name: values for name, values in settings.items() if isinstance(values, dict)}
    record = {
        "title": f"{result['label']} over {len(sites)} sites",
        "task": {
            "data": task["name"],
            "label": task["label"],
            "favourable": task["label_names"][task["favourable"]],
            "groups": f"{task['group']}: {', '.join(task['group_names'])}",
        },
        "choices": {
            f"{part}: {name}": str(value) for part, values in sections.items() for name, value in values.items()
        },
        "clients": [_client(site, task) for site in sites if site["rows"] is not None],
        "runs": ["."],
        "group_names": task["group_names"],
        "favourable": task["favourable"],
        "data_notes": result["notes"],
        "versions": {"ffalm": ffalm.__version__},
        "command": f"ffalm federate run {settings['name']}",
    }
    write_whole(folder / "study.json", json.dumps(record, indent=2) + "\n")


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
    from rich import box
    from rich.console import Console
    from rich.table import Table

    result, sites, _ = _read(folder)
    console = Console(width=width, no_color=True, highlight=False, force_terminal=False)
    with console.capture() as captured:
        for title, names, rows in (
            ("All sites together (test rows, %)", ("Metric", "Value", "95 % interval"), _metrics(result)),
            ("Each site (test rows, %)", _SITE_COLUMNS, _site_rows(sites)),
        ):
            table = Table(*names, title=title, title_justify="left", box=box.SIMPLE)
            for row in rows:
                table.add_row(*row)
            console.print(table)
        if _starred(_site_rows(sites)):
            console.print(_STAR)
        for line in ([result["diverged"]] if result["diverged"] else []) + result["notes"]:
            console.print(f"- {line}", markup=False)
    return captured.get()


_SITE_COLUMNS = ("Site", "Training rows", "Accuracy", "DPD", "EOD", "Rounds missed", "Quarantined", "Withheld cells")


def _metrics(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, title in _SHOWN.items():
        low, high = result["intervals"].get(name, (None, None))
        between = "" if low is None or high is None else f"{_percent(low)} to {_percent(high)}"
        rows.append((title, _percent(result["test"].get(name)), between))
    return rows


def _site_rows(sites: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            site["name"],
            "left out" if site["rows"] is None else str(site["rows"]["rows"]),
            *(_own(site, name) for name in _PER_SITE),
            _ranges([int(number) for number in site["missed"]]),
            _ranges([int(number) for number in site["quarantined"]]),
            "; ".join(site["withheld"].get("test", [])),
        )
        for site in sites
    ]


def _starred(rows: Sequence[Sequence[str]]) -> bool:
    return any(cell.endswith("*") for row in rows for cell in row)


def _own(site: Mapping[str, Any], metric: str) -> str:
    """A site's own value, marked where it is of a part of its rows only."""
    value = _percent((site["test"] or {}).get(metric))
    return f"{value}*" if site["withheld"].get("test") and value != "-" else value


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    result, sites, agreed = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("result.json", "sites.json", "encoding.json")
    )
    return result, sites["sites"], agreed["task"]


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f}"


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
