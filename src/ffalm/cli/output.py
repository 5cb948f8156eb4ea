"""Printing of lines, tables, JSON, and the answer to a fairness target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffalm.errors import TrainingDiverged
from ffalm.system.files import json_text

if TYPE_CHECKING:
    from rich.console import Console

    from ffalm.outcome import Record
    from ffalm.report.tables import Table
    from ffalm.studies.results import Study
    from ffalm.targets.answer import Answer

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def print_json(value: Any) -> None:
    """Print plain values for machines; numbers that are not finite become null."""
    typer.echo(json_text(value, 2))


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a text as it is, neither wrapped nor coloured."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def print_table(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of texts, each as it is."""
    from rich.markup import escape
    from rich.table import Column
    from rich.table import Table as RichTable

    table = RichTable(*(Column(head, overflow="fold") for head in heads), title=escape(title), title_justify="left")
    for one in rows:
        table.add_row(*map(escape, one))
    console.print(table)


def scores_text(record: Record) -> str:
    """Accuracy and gaps of a round on the validation part, in percent, as far as they are known."""
    shown = [("accuracy", "acc"), ("dpd", "DPD"), ("eod", "EOD")]
    return "  ".join(f"{short} {100 * record[name]:.1f}" for name, short in shown if record.get(name) is not None)


def print_results(tables: Iterable[Table | None], lines: Iterable[str] = (), heading: str = "") -> None:
    """Print tables, each with a blank line below, then lines of text under a heading in bold, if there is one."""
    from rich.console import Console

    from ffalm.report.rendering import print_whole

    console = Console()
    for table in filter(None, tables):
        print_whole(console, table)
        console.print()
    if heading:
        print_line(console, heading, "bold")
    for line in lines:
        print_line(console, line)


def print_answer(answer: Answer) -> None:
    """Print the answer, who pays for it, and every candidate."""
    from ffalm.report.answer_report import candidates, sentences, sites, who_pays

    alpha = answer.chosen.alpha
    skew = "" if alpha is None else f" (alpha {alpha:g})"
    tables = (candidates(answer, brief=True), who_pays(answer), sites(answer))
    print_results(tables, [f"  {sentence}" for sentence in sentences(answer)], f"Answer to {answer.target}{skew}")


def raise_if_diverged(*studies: Study) -> None:
    """After the results are written, end with the exit code of a diverged training if a run diverged."""
    runs = [run for study in studies for run in study.results]
    diverged = [run.diverged for run in runs if run.diverged]
    if diverged:
        raise TrainingDiverged(f"{len(diverged)} of {len(runs)} runs stopped early. {diverged[0]}")
