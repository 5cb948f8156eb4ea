"""The fronts of a sweep as tables, sentences and one chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffalm.report.chart_sheet import sheet
from ffalm.report.curves import COLOURS, Chart, Key
from ffalm.report.fronts import Front, FrontPoint, Part
from ffalm.report.plots import Line, Mark, Plot, step_line
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.report.summary import metric_title
from ffalm.report.tables import Cell, Column, Section, Table, percent, row
from ffalm.system.files import write_atomic
from ffalm.targets.target import Target


def points(fronts: Sequence[Front]) -> Table:
    """Every point, one section per algorithm; points on the front of their algorithm are bold."""
    metric = fronts[0].metric
    parts: dict[Part, str] = {"held_out": "held-out rows", "test": "test rows"}
    columns = [
        Column(title, "percent", 1, over=over)
        for over in parts.values()
        for title in ("accuracy", metric_title(metric))
    ]
    sections = []
    for front in fronts:
        best = front.best
        rows = [_row(one, one in best, list(parts), metric) for one in front.points]
        sections.append(Section(rows, front.algorithm))
    caption = (
        "Means over seeds in percent, with the standard deviation; bold: on the front of its algorithm, no other point "
        f"of which is at least as accurate on test rows with a {metric_title(metric)} at most as large."
    )
    return Table("Fronts", [Column("Settings"), *columns], sections, caption)


def volumes(fronts: Sequence[Front]) -> Table:
    """The hypervolume of each front with its interval."""
    gap, accuracy = fronts[0].reference
    rows = [
        row(front.algorithm, Cell(front.hypervolume, interval=front.interval), len(front.best), len(front.points))
        for front in fronts
    ]
    caption = (
        f"Share of the box from {metric_title(fronts[0].metric)} {percent(gap, 1)} and accuracy {percent(accuracy, 1)} "
        "% (the most frequent label) to a gap of 0 and accuracy 100 % that the points dominate on test rows, in "
        "percent: mean over seeds with its 95 % interval (Student's t)."
    )
    columns = [Column("Algorithm"), Column("hypervolume", "percent", 1), Column("on the front", "count")]
    return Table("Hypervolume", [*columns, Column("points", "count")], [Section(rows)], caption)


def tidy(fronts: Sequence[Front]) -> Table:
    """One row for every point and seed, as fractions, for machines."""
    metric = fronts[0].metric
    knobs = list(dict.fromkeys(name for front in fronts for one in front.points for name in one.settings))
    scores = [(part, name) for part in ("test", "held_out") for name in ("accuracy", metric)]
    columns = ["algorithm", "label", *knobs, "seed", *(f"{part}_{name}" for part, name in scores), "on_front"]
    rows = [
        row(
            front.algorithm,
            one.label,
            *(one.settings.get(name) for name in knobs),
            run.seed,
            *(getattr(run, part).get(name) for part, name in scores),
            str(one in front.best).lower(),
        )
        for front in fronts
        for one in front.points
        for run in one.runs
    ]
    return Table("", [Column(name) for name in columns], [Section(rows)])


def chosen(one: FrontPoint, part: Part, target: Target) -> str:
    """The answer to "most accurate within a target", in a sentence."""
    where = "held-out" if part == "held_out" else "test"
    gaps = ", ".join(f"{metric_title(bound.metric)} {percent(one.mean(bound.metric), 1)}" for bound in target.bounds)
    met = sum(target.meets(run.test) for run in one.runs)
    return (
        f"Most accurate with {target} on {where} rows: {one.label}, on test rows accuracy "
        f"{percent(one.mean('accuracy'), 1)} %, {gaps}; the bound held there in {met} of {len(one.runs)} seeds."
    )


def chart(fronts: Sequence[Front]) -> Chart | None:
    """All fronts in one chart, accuracy against the gap; None if no point has numbers."""
    metric = metric_title(fronts[0].metric)
    marks: list[Mark] = []
    lines: list[Line] = []
    for colour, front in enumerate(fronts):
        best = front.best
        lines.append(Line(step_line([_place(one, front) for one in best]), "series", colour))
        for one in front.points:
            gap, accuracy = _place(one, front)
            if one.usable and math.isfinite(gap) and math.isfinite(accuracy):
                half = 100 * (one.spread("accuracy") or 0.0)
                lines.append(Line([(gap, accuracy - half), (gap, accuracy + half)], "spread", colour))
                about = f"{one.label}: accuracy {accuracy:.1f} %, {metric} {gap:.1f}"
                marks.append(Mark(gap, accuracy, "mean" if one in best else "fitted", colour % COLOURS, about))
    if not marks:
        return None
    keys = [Key(front.algorithm, colour % COLOURS) for colour, front in enumerate(fronts)]
    keys += [Key("on the front", None, kind="mean"), Key("not on it", None, kind="fitted")]
    plot = Plot(f"Accuracy against {metric}.", f"{metric} (points)", "Accuracy (%)", marks, lines, size=(620, 420))
    return Chart("fronts", "Fronts on test rows, means over seeds with one standard deviation", keys, [("", [plot])])


def write_fronts(fronts: Sequence[Front], folder: Path) -> dict[str, Path]:
    """The tables and the chart as files."""
    drawn = chart(fronts)
    contents = {
        "fronts.csv": to_csv(tidy(fronts)),
        "fronts.md": "\n".join(to_markdown(table) for table in (points(fronts), volumes(fronts))),
        **({"fronts.svg": sheet([drawn])} if drawn else {}),
    }
    return {name: write_atomic(folder / name, content) for name, content in contents.items()}


def _place(one: FrontPoint, front: Front) -> tuple[float, float]:
    return 100 * one.mean(front.metric), 100 * one.mean("accuracy")


def _row(one: FrontPoint, best: bool, parts: list[Part], metric: str) -> Any:
    cells = [
        Cell(one.mean(name, part) if one.runs else "diverged", one.spread(name, part), bold=best)
        for part in parts
        for name in ("accuracy", metric)
    ]
    name = ", ".join(f"{key} {value}" for key, value in one.settings.items()) or "as it is"
    notes = [f"{one.diverged} of {one.diverged + len(one.runs)} diverged"] if one.diverged else []
    notes += [f"degenerate: {one.degenerate}"] if one.degenerate else []
    return row(Cell(name, bold=best), *cells, note="; ".join(notes))
