"""The report of a study: tables, curves and one HTML page, made from plain values alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.outcome import StudyOutcome
from ffalm.system.files import json_text, write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ffalm.targets.answer import Answer


def write_report(study: StudyOutcome, folder: Path) -> dict[str, Path]:
    """Write tables, curves and the page into a folder, and return the files by name."""
    from ffalm.report import study_tables
    from ffalm.report.chart_sheet import sheet
    from ffalm.report.curves import charts
    from ffalm.report.page import render
    from ffalm.report.rendering import to_csv, to_latex, to_markdown

    table = study_tables.results(study)
    drawn = charts(study)
    contents: dict[str, str | bytes | None] = {
        "tables.md": to_markdown(table),
        "tables.tex": to_latex(table),
        "tables.csv": to_csv(study_tables.tidy(study)),
        "curves.svg": sheet(drawn) if drawn else None,
        "answer.json": answer_file(study.answers) if study.answers else None,
        "report.html": render(study, drawn),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)  # old curves would not match this table
        else:
            write_atomic(folder / name, content)
    return {name: folder / name for name, content in contents.items() if content is not None}


def answer_file(answers: Sequence[Answer]) -> bytes:
    """`answer.json`: the answers to a study's target, one per skew."""
    from ffalm.report.answer_report import to_plain

    return json_text({"answers": [to_plain(answer) for answer in answers]}, indent=2).encode()


__all__ = ["answer_file", "write_report"]
