"""The report of a study: tables, curves and one HTML page, made from plain values alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.outcome import StudyOutcome
from ffalm.system.files import json_text, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ffalm.report.drawing import Drawings
    from ffalm.targets.answer import Answer

CHARTS_LEFT_OUT = (
    "The curves were left out because {missing} is not installed here; "
    "install altair and vl-convert-python and make the report again."
)
OUT_OF_MEMORY = (
    "The curves were left out because drawing them needs more memory than this process may take (ulimit -v); make the "
    "report again without that limit."
)


def write_report(study: StudyOutcome, folder: Path) -> dict[str, Path]:
    """Write tables, curves and the page into a folder, and return the files by name.

    Without altair or vl-convert the curves are left out, and a note on the page says why.
    """
    from ffalm.report import study_tables
    from ffalm.report.page import render
    from ffalm.report.rendering import to_csv, to_latex, to_markdown

    table = study_tables.results(study)
    tables: dict[str, bytes | None] = {
        "tables.md": to_markdown(table).encode(),
        "tables.tex": to_latex(table).encode(),
        "tables.csv": to_csv(study_tables.tidy(study)).encode(),
    }
    written = _write(tables, folder)  # before the curves, whose drawing needs much memory
    drawings, notes = drawn(study)
    contents: dict[str, bytes | None] = {
        "curves.png": drawings.png if drawings else None,
        "curves.pdf": drawings.pdf if drawings else None,
        "answer.json": answer_file(study.answers) if study.answers else None,
        "report.html": render(study, drawings, notes).encode(),
    }
    return {**written, **_write(contents, folder)}


def _write(contents: dict[str, bytes | None], folder: Path) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if content is None:
            (folder / name).unlink(missing_ok=True)  # curves of an earlier report would not belong to this table
        else:
            write_whole(folder / name, content)
    return {name: folder / name for name, content in contents.items() if content is not None}


def answer_file(answers: Sequence[Answer]) -> bytes:
    """`answer.json`: the answers to a study's target, one a skew."""
    from ffalm.report.answer_report import to_plain

    return json_text({"answers": [to_plain(answer) for answer in answers]}, indent=2).encode()


def drawn(study: StudyOutcome) -> tuple[Drawings | None, list[str]]:
    """The curves of a study, or None and a note that says why there are none."""
    from ffalm.report.drawing import draw, draw_apart, memory_is_limited

    try:
        return (draw_apart if memory_is_limited() else draw)(study), []
    except ImportError as error:
        return None, [CHARTS_LEFT_OUT.format(missing=error.name or "a chart library")]
    except MemoryError:
        return None, [OUT_OF_MEMORY]


__all__ = ["answer_file", "drawn", "write_report"]
