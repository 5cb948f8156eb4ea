"""What a computation of this room hands over: a table in plain text, notes, and the files it was written to."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ffalm.files import write_whole
from ffalm.report import CHARTS_LEFT_OUT
from ffalm.report.drawing import pictures


@dataclass(frozen=True)
class Findings:
    """A table with a title and what a reader must know beside it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]
    files: dict[str, Path] = field(default_factory=dict)

    def markdown(self) -> str:
        """The title, the table and the notes."""
        lines = [f"# {self.title}", "", *self.table(), ""]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)]) + "\n"

    def table(self) -> list[str]:
        """The table alone, a line a row."""
        return [_line(self.columns), _line(["---"] * len(self.columns)), *map(_line, self.rows)]

    def csv(self) -> str:
        """The table for other programs."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()


def write(findings: Findings, folder: Path, stem: str, chart: Callable[[], dict[str, Any]]) -> Findings:
    """Write the table and the chart into a folder; the answer says where, and whether the chart had to be left out."""
    contents: dict[str, bytes] = {}
    try:
        contents |= {f"{stem}.{ending}": content for ending, content in pictures(chart()).items()}
    except ImportError as error:
        missing = CHARTS_LEFT_OUT.format(missing=error.name or "a chart library")
        findings = replace(findings, notes=[*findings.notes, missing])
    contents[f"{stem}.md"] = findings.markdown().encode()
    contents[f"{stem}.csv"] = findings.csv().encode()
    for name, content in contents.items():
        write_whole(folder / name, content)
    return replace(findings, files={name: folder / name for name in sorted(contents)})


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
