"""The renderers of a `Table`: Markdown, LaTeX, CSV, terminal and HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ffalm.report.tables import MINUS, TIMES, Cell, Column, Table, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console
    from rich.table import Table as RichTable

#: A name longer than this may be broken over several lines on a terminal.
LONGEST_NAME = 30
_NARROW = 80  # columns of a terminal
_WORD = 14  # longer words may be broken

_RTL = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"  # letters of Hebrew, Arabic and their neighbours
_RIGHT_TO_LEFT = re.compile(rf"[{_RTL}](?:[{_RTL}\s'\"-]*[{_RTL}])?")
_LEFT_TO_RIGHT = re.compile(rf"[^\W\d_{_RTL}]")

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "±": r"$\pm$",
    "≤": r"$\leq$", "≥": r"$\geq$", "\N{GREEK SMALL LETTER ALPHA}": r"$\alpha$", "β": r"$\beta$", "λ": r"$\lambda$",
    "η": r"$\eta$", "\N{GREEK SMALL LETTER RHO}": r"$\rho$", "Δ": r"$\Delta$", MINUS: r"$-$", TIMES: r"$\times$",
    "\u202f": r"\,",
}  # fmt: skip


def to_markdown(table: Table) -> str:
    """Pipe tables for GitHub and Pandoc: one for all sections if the table has a key column, else one each."""
    heads = [table.key] * bool(table.key) + [column.heads for column in table.columns] + ["Note"] * table.noted
    numeric = [True] * bool(table.key) + [column.numeric for column in table.columns] + [False] * table.noted
    top = [_pipes(map(markdown, heads)), _pipes("---:" if right else "---" for right in numeric)]
    caption = f": {markdown(table.caption)}" if table.caption else ""
    blocks = [f"**{markdown(table.title)}**{caption}"] if table.title else []
    lines: list[str] = []
    for section in table.sections:
        body = []
        for one, cells in table.shown(section):
            key, note = [section.key] * bool(table.key), [one.note] * table.noted
            body.append(_pipes([*map(markdown, key), *(_markdown_cell(*pair) for pair in cells), *map(markdown, note)]))
        if table.key:
            lines += body
        else:
            heading = f"{markdown(section.heading)}\n\n" if section.heading else ""
            blocks.append(heading + "\n".join([*top, *body]))
    blocks += ["\n".join([*top, *lines])] if table.key else []
    return "\n\n".join(blocks) + "\n"


def to_latex(table: Table, label: str = "tab:ffalm", compact: bool = False) -> str:
    """A floating table that needs only the package booktabs, with notes below it.

    `compact` sets a wide table in small type and centres it, even if it is wider than the text.
    """
    distinct = dict.fromkeys(one.note for one in table.rows if one.note)
    marks = {text: chr(ord("a") + index % 26) for index, text in enumerate(distinct)}
    width = len(table.columns)
    body: list[str] = []
    for section in table.sections:
        body.append(r"\midrule")
        if section.heading:
            body += [rf"\multicolumn{{{width}}}{{c}}{{{latex(section.heading)}}} \\", r"\midrule"]
        for one, pairs in table.shown(section):
            cells = [_latex_cell(column, cell, compact) for column, cell in pairs]
            cells[0] += rf"\textsuperscript{{{marks[one.note]}}}" if one.note else ""
            body.append(" & ".join(cells) + r" \\")
    notes = [rf"\textsuperscript{{{mark}}}\,{latex(text)}." for text, mark in marks.items()]
    below = [r"\quad ".join(notes)] * bool(notes) + [latex(note) for note in table.notes]
    size = r"\scriptsize" if compact else r"\footnotesize"
    small = [size, r"\setlength{\tabcolsep}{2.2pt}", r"\makebox[\linewidth][c]{%"] if compact else []
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{latex(table.heading)}}}",
        rf"\label{{{label}}}",
        *small,
        rf"\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}",
        r"\toprule",
        *_latex_spans(table),
        " & ".join(latex(column.head) for column in table.columns) + r" \\",
        *body,
        r"\bottomrule",
        r"\end{tabular}" + ("}" if compact else ""),
        *(
            [r"\par\smallskip", rf"{{{size}\raggedright", *(rf"\par {text}" for text in below), r"\par}"]
            if below
            else []
        ),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """The values in full precision, a line per row; an empty field has no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.heads for column in table.columns])
    writer.writerows([plain(cell.value) for cell in one.cells] for one in table.rows)
    return text.getvalue()


def to_rich(table: Table) -> RichTable:
    """The table for a terminal: caption and notes below."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    notes = [
        f"{', '.join(filter(None, [table.columns[0].text(one.cells[0]), section.heading]))}: {one.note}."
        for section in table.sections
        for one in section.rows
        if one.note
    ]
    below = Text("\n".join(filter(None, [table.caption, *notes, *table.notes])), style="dim")
    title = Text(table.title, style="bold") if table.title else None
    rich = RichTable(
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        caption=below or None,
        caption_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    if table.key:
        rich.add_column(Text(table.key))
    texts = [[column.text(one.cells[place]) for one in table.rows] for place, column in enumerate(table.columns)]
    words = [
        _longest_word([column.heads, *(texts[place] if place >= table.names else ())])
        for place, column in enumerate(table.columns)
    ]
    widths = [max(map(len, own), default=0) for own in texts]
    fits = sum(max(pair) + 2 for pair in zip(words, widths, strict=True)) <= _NARROW
    for place, column in enumerate(table.columns):  # names and long words are broken, numbers never
        fixed = place < table.names and widths[place] <= LONGEST_NAME and fits
        rich.add_column(
            Text(column.heads),
            justify="right" if column.numeric else "left",
            no_wrap=fixed,
            min_width=words[place],
            overflow="fold",
        )
    for section in table.sections:
        if section.heading and not table.key:
            rich.add_row(Text(section.heading, style="italic"))
        for index, (_, pairs) in enumerate(table.shown(section)):
            cells = [
                Text.assemble((column.text(cell), "bold" if cell.bold else ""), _spaced(column.aside(cell)))
                for column, cell in pairs
            ]
            key = [Text("" if index else section.key)] * bool(table.key)
            rich.add_row(*key, *cells, end_section=index == len(section.rows) - 1)
    return rich


def _longest_word(texts: Iterable[str]) -> int:
    return max((min(len(word), _WORD) for text in texts for word in text.split()), default=0)


def print_whole(console: Console, table: Table) -> None:
    """Print a table on a terminal; if the terminal is too narrow, lines are longer than it, but not cut."""
    from rich.segment import Segment, Segments

    shown: list[Segment] = []
    for line in Segment.split_lines(console.render(to_rich(table))):
        while line and not line[-1].text.strip():  # trailing blanks would make a line too long
            line.pop()
        last = [Segment(line[-1].text.rstrip(), line[-1].style)] if line else []
        shown += [*line[:-1], *last, Segment.line()]
    console.print(Segments(shown), crop=False, end="")


def to_html(table: Table) -> str:
    """The table as on the page, with every text escaped."""
    return str(environment().get_template("table.html").make_module({}).show(table))  # type: ignore[attr-defined]


def sentences_html(sentences: Iterable[str], *tables: Table) -> str:
    """An answer or an audit as notebooks show it: its sentences, then tables."""
    return "".join([*(f"<p>{html.escape(isolated(one))}</p>" for one in sentences), *map(to_html, tables)])


@cache
def environment() -> Environment:
    """The Jinja2 environment of the page, with templates in `assets/`; every value is escaped.

    A study's title, labels and notes come from files and flags; a page must show them and never run them.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ffalm.report", "assets"),
        autoescape=True,
        finalize=_finished,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["unbroken"] = _unbroken
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made


def _finished(value: Any) -> Any:
    """What a template shows of a value: plain text isolated, markup and source code as they are."""
    return isolated(value) if type(value) is str else value


def isolated(text: str) -> str:
    """Text whose words of a script from right to left do not move the numbers and signs beside them.

    "קבוצה: 66.7 %" would be shown with the number before the name. Text of such a script alone needs nothing.
    """
    if text.isascii() or not _LEFT_TO_RIGHT.search(text):
        return text
    return _RIGHT_TO_LEFT.sub("\u2068\\g<0>\u2069", text)


def _unbroken(text: str) -> str:
    """Text without line breaks between a number and its unit, or a heading and its arrow."""
    return re.sub(r" (?=[%↑↓])", "\u00a0", text)


def asset(name: str) -> str:
    """The source of a file in `assets/`, such as a script or a style sheet."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(character, character) for character in text)


def markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    escaped = "".join(f"\\{character}" if character in "\\`*_{}[]>#|$" else character for character in text)
    escaped = escaped.replace("<", "&lt;")  # some renderers show the backslash of an escaped one
    return " ".join(escaped.split())


def _latex_spans(table: Table) -> list[str]:
    """The upper row of headings, each with a rule below it."""
    if not any(column.over for column in table.columns):
        return []
    cells, rules, first = [], [], 1
    for text, same in groupby(column.over for column in table.columns):
        width = len(list(same))
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{latex(text)}}}")
        rules += [rf"\cmidrule(lr){{{first}-{first + width - 1}}}"] * bool(text)
        first += width
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _latex_cell(column: Column, cell: Cell, compact: bool) -> str:
    text, aside = latex(column.text(cell)), latex(column.aside(cell))
    shown = rf"\textbf{{{text}}}" if cell.bold and text else text
    return shown + _spaced(rf"{{\tiny {aside}}}" if compact and aside else aside)


def _markdown_cell(column: Column, cell: Cell) -> str:
    text = markdown(column.text(cell))
    return (f"**{text}**" if cell.bold and text else text) + _spaced(column.aside(cell))


def _spaced(aside: str) -> str:
    return f" {aside}" if aside else ""


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
