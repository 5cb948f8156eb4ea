"""Tables of text with sections and bold cells, and one renderer for each place they go: terminal, Markdown, LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ffalm.report.tables import latex

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Cell:
    """A text, its main part perhaps bold."""

    text: str = ""
    aside: str = ""  # a spread or an interval, never bold
    bold: bool = False


@dataclass(frozen=True)
class Section:
    """Rows under a heading of their own."""

    heading: str
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Sheet:
    """A table with nothing left to decide but the markup; the first columns hold names, the others numbers."""

    title: str
    heads: list[str]
    sections: list[Section]
    names: int = 1  # how many columns hold names
    spans: list[tuple[str, int]] = field(default_factory=list)  # heads above the heads: text and width
    wraps: bool = False  # whether names are so long that a terminal must break them

    @property
    def headed(self) -> bool:
        """Whether the sections need their headings."""
        return any(section.heading for section in self.sections)


def to_markdown(sheet: Sheet) -> str:
    """A pipe table for every section; heads above heads are joined with those below."""
    heads = [_escaped(head) for head in _joined_heads(sheet)]
    aligns = ["---"] * sheet.names + ["---:"] * (len(heads) - sheet.names)
    blocks = [f"**{_escaped(sheet.title)}**"]
    for section in sheet.sections:
        lines = [f"{_escaped(section.heading)}\n"] if section.heading else []
        lines += [_pipes(heads), _pipes(aligns)]
        lines += [_pipes([_marked(cell) for cell in row]) for row in section.rows]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def to_latex(sheet: Sheet, label: str, notes: list[str]) -> str:
    """A floating table that needs the package booktabs alone; centred, also where it is wider than the text."""
    width = len(sheet.heads)
    body: list[str] = []
    for section in sheet.sections:
        body.append(r"\midrule")
        if sheet.headed:
            body += [rf"\multicolumn{{{width}}}{{c}}{{{latex(section.heading)}}} \\", r"\midrule"]
        body += [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in section.rows]
    below = [rf"\par {latex(note)}" for note in notes]
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex(sheet.title)}}}",
        rf"\label{{{label}}}",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{2.2pt}",
        r"\makebox[\linewidth][c]{%",
        rf"\begin{{tabular}}{{{'l' * sheet.names}{'r' * (width - sheet.names)}}}",
        r"\toprule",
        *_latex_spans(sheet),
        " & ".join(latex(head) for head in sheet.heads) + r" \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *([r"\par\smallskip", r"\begin{minipage}{\linewidth}", *below, r"\end{minipage}"] if below else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_rich(sheet: Sheet) -> RichTable:
    """The table for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    title = Text(sheet.title, style="bold")
    table = RichTable(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for index, head in enumerate(_joined_heads(sheet)):
        named = index < sheet.names
        table.add_column(head, justify="left" if named else "right", no_wrap=named and not sheet.wraps)
    for section in sheet.sections:
        if section.heading:
            table.add_row(Text(section.heading, style="italic"))
        for index, row in enumerate(section.rows):
            cells = [Text.assemble((cell.text, "bold" if cell.bold else ""), _spaced(cell.aside)) for cell in row]
            table.add_row(*cells, end_section=index == len(section.rows) - 1)
    return table


def _joined_heads(sheet: Sheet) -> list[str]:
    above = [text for text, width in sheet.spans for _ in range(width)] or [""] * len(sheet.heads)
    return [f"{over} {head}".strip() for over, head in zip(above, sheet.heads, strict=True)]


def _latex_spans(sheet: Sheet) -> list[str]:
    if not sheet.spans:
        return []
    cells, rules, column = [], [], 1
    for text, width in sheet.spans:
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{latex(text)}}}")
        if text:
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{latex(cell.text)}}}" if cell.bold and cell.text else latex(cell.text)
    return rf"{text} {{\tiny {latex(cell.aside)}}}" if cell.aside else text


def _marked(cell: Cell) -> str:
    text = _escaped(cell.text)
    return f"**{text}**{_spaced(cell.aside)}" if cell.bold and cell.text else f"{text}{_spaced(cell.aside)}"


def _spaced(aside: str) -> str:
    return f" {aside}" if aside else ""


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_[]<>|" else character for character in text)
