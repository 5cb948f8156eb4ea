"""What the terminal shows of a federation's training: a line per round, then the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ffalm.cli.output import print_answer, print_json, print_line, scores_text
from ffalm.errors import TrainingDiverged
from ffalm.system.files import read_json

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.federate.deploy.follow import Record


class RoundLines:
    """Prints one line per round, once its metrics are known or the next round has begun."""

    def __init__(self, console: Console, facts: dict[str, Any]) -> None:
        self._console = console
        self._rounds = facts.get("training", {}).get("rounds", "?")
        self._shown = 0
        self._absent: dict[str, str] = {}  # why each site did not count in the last round that was shown

    def tell(self, sentence: str) -> None:
        """Print an event about sites."""
        print_line(self._console, sentence)

    def show(self, records: list[Record]) -> None:
        """Show the rounds that are new."""
        for record in records[self._shown :]:
            if not {"accuracy", "epsilon"} & record.keys() and record is records[-1]:
                return  # the sites score a round's model in the next one, and with privacy not at all
            self._shown += 1
            self._console.print(f"round {record['round']}/{self._rounds}: {_scores(record)}", highlight=False)
            self._show_absent(record)

    def _show_absent(self, record: Record) -> None:
        """Say which sites do not count from this round on, and why: once for each reason."""
        absent: dict[str, str] = {**record.get("missed", {}), **record.get("quarantined", {})}
        for site, reason in absent.items():
            if self._absent.get(site) != reason:
                print_line(self._console, f"Without the site {site!r}: {reason.removesuffix('.')}.")
        self._absent = absent


def _scores(record: Record) -> str:
    parts = [scores_text(record)] if record.get("accuracy") is not None else []
    for name, digits in (("train_loss", 4), ("epsilon", 2)):
        if record.get(name) is not None:
            parts.insert(0, f"{name.removeprefix('train_')} {record[name]:.{digits}f}")
    return "  ".join([*parts, f"{record['seconds']:.1f} s"])


def show_result(run: Path, as_json: bool) -> None:
    """Print the tables of results, or everything as JSON; a training that diverged is an error."""
    from ffalm.federate.coordinator.federation_answer import read_answer
    from ffalm.federate.coordinator.federation_report import summary
    from ffalm.studies.results import Study

    found = read_json(run / "result.json")
    page = Study.load(run).write_report()["report.html"]
    answered = run / "answer.json"
    if as_json:
        answers = read_json(answered) if answered.exists() else {}
        print_json({"folder": run, **found, **answers})
    else:
        typer.echo(summary(run).rstrip())
        answer, obstacles = read_answer(run)
        if answer is not None:
            print_answer(answer)
        for line in obstacles:
            typer.echo(f"- {line}")
        typer.echo(f"Report: {page} and {run / 'report.md'}")
    if found["diverged"]:
        raise TrainingDiverged(f"The training stopped early. {found['diverged']}")
