"""Accuracy against each gap as plots, and with several skews each metric against the skew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from ffalm.outcome import HEADLINE, Outcome, StudyOutcome, degenerate
from ffalm.report.fronts import dominates
from ffalm.report.plots import Line, Mark, Place, Plot, step_line
from ffalm.report.summary import ALPHA, metric_title, pick, skew, summarise
from ffalm.report.tables import percent
from ffalm.targets.answer import Answer
from ffalm.targets.target import TITLES

#: How far the majority share may lie below the others and still be drawn as a line, in ranges of the accuracies.
_MOST_BELOW = 0.5
GAPS = {"dpd": "DPD", "eod": "EOD"}


def trade_off(study: StudyOutcome, alpha: float | None) -> list[Plot]:
    """Accuracy against DPD and against EOD at one skew; none if no run has both."""
    answer = next((one for one in study.answers if one.chosen.alpha == alpha), None)
    plots = (_plot(study, alpha, gap, answer) for gap in GAPS)
    return [plot for plot in plots if plot is not None]


def _plot(study: StudyOutcome, alpha: float | None, gap: str, answer: Answer | None) -> Plot | None:
    labels = study.labels()
    marks: list[Mark] = []
    means: list[Place] = []
    for colour, label in enumerate(labels):
        runs = [run for run in pick(study, alpha, label) if _defined(_place(run, gap))]
        flawed = bool(degenerate(runs)) if runs else False
        for run in runs:
            about = f"{label}, seed {run.seed}"
            marks.append(Mark(*_place(run, gap), "degenerate" if run.flaws else "seed", colour, about))
        if runs and not flawed:
            mean = _mean(_place(run, gap) for run in runs)
            means.append(mean)
            marks.append(Mark(*mean, "mean", colour, f"{label}, mean of {len(runs)}" if len(runs) > 1 else label))
    if not marks:
        return None
    runs_there = [run for label in labels for run in pick(study, alpha, label)]
    lines: list[Line] = []
    fitted, star = ([], []) if answer is None else _fitted(answer, gap, labels)
    marks += [*fitted, *star]
    means += [(mark.x, mark.y) for mark in fitted]
    note, majority = _majority(runs_there, [mark.y for mark in marks])
    if answer is not None:
        bounds = [100 * bound.value for bound in answer.target.bounds if bound.metric == gap]
        lines += [Line(_upright(place, majority, marks), "target", label="target") for place in bounds]
    front = sorted(one for one in means if not any(dominates((-o[0], o[1]), (-one[0], one[1])) for o in means))
    if len(front) > 1:
        lines.insert(0, Line(step_line(front), "front"))
    if majority is not None:
        lines.append(majority)
    return Plot(
        _in_words(gap, front, answer),
        f"{GAPS[gap]} (points, smaller is fairer)",
        "accuracy (%)",
        marks,
        lines,
        note=note,
    )


def by_skew(study: StudyOutcome) -> list[Plot]:
    """Each metric against the Dirichlet skew, means over seeds with their spread; none with fewer than two skews."""
    skews = [alpha for alpha in study.alphas() if alpha is not None]
    if len(skews) < 2:
        return []
    places = {alpha: place for place, alpha in enumerate(sorted(skews))}
    labels, rows, plots = study.labels(), summarise(study), []
    for metric, (name, up) in HEADLINE.items():
        marks, lines = [], []
        for colour, label in enumerate(labels):
            own = sorted(
                (row for row in rows if row.label == label and row.alpha in places), key=lambda row: row.alpha or 0
            )
            shift = 0.3 * (colour - (len(labels) - 1) / 2) / max(1, len(labels))
            points = []
            for row in own:
                cell = row.cells[metric]
                if not math.isfinite(cell.mean) or row.alpha is None:
                    continue
                x, mean, std = places[row.alpha] + shift, 100 * cell.mean, 100 * (cell.std or 0.0)
                about = f"{label}, {skew(row.alpha)}: {percent(cell.mean, 1)}"
                marks.append(Mark(x, mean, "degenerate" if row.degenerate else "mean", colour, about))
                lines.append(Line([(x, mean - std), (x, mean + std)], "spread", colour))
                points.append((x, mean))
            lines.insert(0, Line(points, "series", colour))
        about = f"{name} by skew for {', '.join(labels)}; the numbers are in the results table."
        title = f"{metric_title(metric)} ({'%' if up else 'points'})"
        ticks = [(float(place), f"{alpha:g}") for alpha, place in places.items()]
        plots.append(Plot(about, f"{ALPHA} (smaller: clients differ more)", title, marks, lines, ticks))
    return plots


def _fitted(answer: Answer, gap: str, labels: Sequence[str]) -> tuple[list[Mark], list[Mark]]:
    """Sound models with fitted thresholds, and the answer among them; means over seeds of test rows."""
    fitted, star = [], []
    for one in answer.candidates:
        chosen = one is answer.chosen
        metrics = {name: one.mean(name) for name in ("accuracy", gap)}
        if chosen and answer.together is not None:
            metrics = answer.together.metrics
        x, y = 100 * metrics[gap], 100 * metrics["accuracy"]
        if not _defined((x, y)) or one.label not in labels:
            continue
        about = f"{one.label}, {TITLES[one.kind]}"
        if chosen:
            star.append(Mark(x, y, "answer", labels.index(one.label), f"the answer: {about}"))
        if one.kind != "none" and not one.degenerate:
            fitted.append(Mark(x, y, "fitted", labels.index(one.label), about))
    return fitted, star


def _majority(runs: Sequence[Outcome], accuracies: Sequence[float]) -> tuple[str, Line | None]:
    """A line at the accuracy of always predicting the most frequent label, or a note if that is far below."""
    shares = [run.majority for run in runs if run.confusion is not None]
    if not shares:
        return "", None
    share, low, high = 100 * fmean(shares), min(accuracies), max(accuracies)
    if low - share > _MOST_BELOW * max(high - low, 0.5):
        return f"Always predicting the most frequent label is {share:.1f} % accurate, below this plot.", None
    return "", Line([(-math.inf, share), (math.inf, share)], "majority", label="most frequent label")


def _upright(x: float, majority: Line | None, marks: Sequence[Mark]) -> list[Place]:
    """A line from edge to edge; its label stands at its end, away from that of the majority."""
    ends = [(x, -math.inf), (x, math.inf)]
    if majority is None:
        return ends
    share = majority.points[0][1]
    heights = [share, *(mark.y for mark in marks)]
    return ends[::-1] if 2 * share > min(heights) + max(heights) else ends


def _in_words(gap: str, front: Sequence[Place], answer: Answer | None) -> str:
    text = f"Accuracy against {GAPS[gap]}, one dot per run."
    if front:
        text += f" The front runs from {GAPS[gap]} {front[0][0]:.1f} with accuracy {front[0][1]:.1f} %"
        text += f" to {front[-1][0]:.1f} with {front[-1][1]:.1f} %." if len(front) > 1 else "."
    if answer is not None:
        text += f" The answer is {answer.chosen.label}."
    return text


def _place(run: Outcome, gap: str) -> Place:
    lost = run.diverged is not None
    return tuple(math.nan if lost else 100 * run.test.get(name, math.nan) for name in (gap, "accuracy"))  # type: ignore[return-value]


def _mean(places: Iterable[Place]) -> Place:
    gaps, accuracies = zip(*places, strict=True)
    return fmean(gaps), fmean(accuracies)


def _defined(place: Place) -> bool:
    return all(map(math.isfinite, place))
