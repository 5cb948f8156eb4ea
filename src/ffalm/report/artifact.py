"""The result of an experiment: tables, notes, and the files they were written to, with a chart if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ffalm.report.rendering import to_csv, to_latex, to_markdown
from ffalm.report.tables import Table
from ffalm.system.files import write_atomic


@dataclass(frozen=True)
class Artifact:
    """The tables or the figure of one experiment."""

    name: str
    title: str
    tables: list[Table]  # as a terminal shows them
    notes: list[str]
    choices: list[str] = field(default_factory=list)  # what the paper leaves open, and what was chosen
    files: dict[str, Path] = field(default_factory=dict)  # by file extension, or by content
    values: list[dict[str, Any]] = field(default_factory=list)  # the table for machines


def write(
    artifact: Artifact,
    folder: Path,
    csv: Table | None = None,
    shown: Sequence[Table] = (),
    chart: str | None = None,
    about: str = "",
) -> Artifact:
    """Write Markdown, LaTeX, CSV and the chart, an SVG, into a folder; the result names the files.

    `csv` is the table for machines, `shown` the tables for paper, both by default the artifact's own; `about` is the
    text of the picture.
    """
    tables = list(shown) or artifact.tables
    parts = [to_markdown(table) for table in tables]
    parts += [f"![{about}]({artifact.name}.svg)\n"] if chart else []
    contents = {"svg": chart} if chart else {}
    contents["md"] = _page(artifact, parts)
    if tables:
        below = replace(tables[0], notes=[*artifact.notes, *artifact.choices])
        contents["tex"] = to_latex(below, f"tab:{artifact.name}", compact=True)
        contents["csv"] = to_csv(csv or tables[0])
    files = {end: write_atomic(folder / f"{artifact.name}.{end}", content) for end, content in contents.items()}
    return replace(artifact, files=artifact.files | files)


def _page(artifact: Artifact, parts: Sequence[str]) -> str:
    """The Markdown page."""

    def listed(heading: str, sentences: Sequence[str]) -> list[str]:
        return [f"## {heading}\n", "\n".join(f"- {sentence}" for sentence in sentences) + "\n"] if sentences else []

    choices = listed("What the paper leaves open, and what was chosen", artifact.choices)
    return "\n".join([f"# {artifact.title}\n", *parts, *listed("Notes", artifact.notes), *choices])
