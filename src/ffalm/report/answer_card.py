"""The answer at the top of the page: the model, whether it meets the target, what it costs and who pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffalm.fairness.intervals import wilson
from ffalm.report.answer_report import bound_number, mean_gaps, sentences
from ffalm.report.answer_words import over_seeds, scored_rows, used, used_answer
from ffalm.report.tables import Cell, Column, Interval, Row, Section, Table, percent, row, signed
from ffalm.targets.answer import Answer, GroupRates, Verdict
from ffalm.targets.target import TITLES

#: What each bound requires, in words; {} is the bound and {favourable} the favourable outcome.
_MEANING = {
    "dpd": "the share of people predicted “{favourable}” may differ by at most {} points between groups",
    "eod": "of the people whose true outcome is “{favourable}”, the share found may differ by at most {} points "
    "between groups",
    "equalized_odds": "of the people of each true outcome, the share predicted “{favourable}” may differ by at most {} "
    "points between groups",
    "accuracy_parity": "the share of right predictions may differ by at most {} points between groups",
    "impact_ratio": "the group selected least often must be selected at least {} % as often as the one selected most",
}
#: State, what to do, and the verdict in words; {} are the rows.
_VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "met with confidence": ("good", "Use", "Met, with 95 % confidence"),
    "met in the sample": ("open", "Use", "Met on the test rows, which are too few to be sure"),
    "cannot be judged": (
        "open",
        "Chosen, but nobody can say whether it is within the target:",
        "Cannot be judged: the {} lack those of a group",
    ),
    "not met": ("bad", "Chosen, but not within the target:", "Not met on the {}"),
}
_UNTESTED = "Met on the {} that chose the model; no test rows confirm it"
#: The names of gaps, in the words of the table of who pays.
_NAMES = {
    "dpd": "Gap in predicted “{}” (DPD)",
    "eod": "Gap in true “{}” found (EOD)",
    "equalized_odds": "Largest gap in predicted “{}” by true outcome (equalised odds)",
    "accuracy_parity": "Gap in right predictions",
    "impact_ratio": "Ratio of predicted “{}” (impact ratio)",
}
#: Gaps that are shown even if the target does not bound them.
_OTHERS = ("dpd", "eod")
#: How much larger than the most accurate model's a gap outside the target must be to be marked.
_WIDER = 0.02
#: Smaller changes of accuracy are shown as none.
_SMALL = 0.0005
#: The most groups in the sentences on who pays; the table has all of them.
_MOST_TOLD = 4


@dataclass(frozen=True)
class Tile:
    """One number of the card, with what it means below it."""

    name: str
    value: str
    about: str
    worse: bool = False  # than the most accurate model's


@dataclass(frozen=True)
class AnswerCard:
    """Everything about one answer at the top of the page."""

    alpha: float | None
    model: str
    use: str  # what to do with the model
    place: str  # the folder of its run, empty if it is the report's own
    blind: bool  # whether it has a blind rule and a model of the groups instead of thresholds
    asked: list[str]  # the target in words
    state: str  # "good", "open" or "bad"
    verdict: str
    tiles: list[Tile]
    details: list[str]
    payers: list[str]
    groups: Table


def answer_card(answer: Answer, favourable: str) -> AnswerCard:
    """The card of one answer."""
    state, use, words = _VERDICTS[answer.verdict]
    untested = answer.best.test is None and answer.verdict == "met in the sample"
    verdict = (_UNTESTED if untested else words).format(scored_rows(answer))
    if answer.degenerate:
        state, use = "bad", "Do not use"
        verdict = f"No model can be recommended: of the nearest one, {answer.degenerate}"
    where = {"federation": "", "sites": ", at every site", "both": ", together and at every site"}[answer.scope]
    asked = [
        _MEANING[bound.metric].format(f"{100 * bound.value:g}", favourable=favourable) + where
        for bound in answer.target.bounds
    ]
    return AnswerCard(
        answer.chosen.alpha,
        used_answer(answer),
        use,
        "" if answer.best.run == "." else answer.best.run,
        answer.chosen.kind == "blind",
        asked,
        state,
        verdict,
        _tiles(answer, favourable),
        sentences(answer)[1:],
        payers(answer, favourable),
        who_pays_bars(answer, favourable),
    )


def _tiles(answer: Answer, favourable: str) -> list[Tile]:
    scored, best = answer.scored, answer.best
    rows = sum(group.rows for group in scored.groups)
    accuracy = scored.metrics["accuracy"]
    low, high = wilson(accuracy * rows, rows) if rows else (math.nan, math.nan)
    between = f"95 % interval {percent(low, 1)} to {percent(high, 1)}, " if rows else ""
    tiles = [Tile("Accuracy", f"{percent(accuracy, 1)} %", f"{between}on {rows:,.0f} {scored_rows(answer)}")]
    for bound in answer.target.bounds:
        end = bound_number(bound, scored.ends[bound.metric])
        unknown = math.isnan(scored.metrics[bound.metric])
        unit = " points" if bound.at_most and not unknown else ""
        value = bound_number(bound, scored.metrics[bound.metric]) + unit
        limit = "at most" if bound.at_most else "at least"
        wanted = f"{100 * bound.value:g}" if bound.at_most else f"{bound.value:g}"
        sure = f"{limit} {end} with {percent(scored.level, 0)} % confidence"
        sure = "a group lacks the rows to say" if unknown else sure
        about = f"{sure}; target: {limit} {wanted}"
        tiles.append(Tile(_NAMES[bound.metric].format(favourable), value, about))
    asked = {bound.metric for bound in answer.target.bounds}
    for name in _OTHERS:
        other = scored.metrics.get(name, math.nan)
        if name not in asked and math.isfinite(other):
            about, worse = _beside_the_target(answer, name, other)
            tiles.append(Tile(_NAMES[name].format(favourable), f"{percent(other, 1)} points", about, worse))
    if best.test is not None:
        tiles.append(_cost(answer))
    return [*tiles, Tile("Thresholds", *(_thresholds(best.repair) if answer.together is None else _of_sites(answer)))]


def _beside_the_target(answer: Answer, name: str, value: float) -> tuple[str, bool]:
    """A gap that the target does not bound, compared with the most accurate model's, since it may have grown."""
    before = math.nan  # the same seed's: the value is of one model, not a mean
    if not answer.also_most_accurate and answer.before.test is not None:
        before = answer.before.test.metrics.get(name, math.nan)
    if not math.isfinite(before):
        return "not in the target", False
    worse = value > before + _WIDER
    change = f"wider than the {percent(before, 1)}" if worse else percent(before, 1)
    return f"not bounded; {change} without a target", worse


def _cost(answer: Answer) -> Tile:
    if answer.also_most_accurate:
        beside = {"not met": "; the target is not met", "cannot be judged": "; the target cannot be judged"}
        about = f"it is also the most accurate model of all{beside.get(answer.verdict, '')}"
        return Tile("Cost in accuracy", "none", about)
    cost, free, over = answer.cost, answer.compared, over_seeds(answer)
    value = "none" if abs(cost) < _SMALL else f"{percent(abs(cost), 1)} points"
    name = "Gain in accuracy" if cost <= -_SMALL else "Cost in accuracy"
    rival = f"{used(free)}: {percent(free.mean('accuracy'), 1)} %, {mean_gaps(free, answer.target)}"
    return Tile(name, value, f"{f'{over}, ' if over else ''}against the choice without a target, {rival}")


def _of_sites(answer: Answer) -> tuple[str, str]:
    """Which sites have thresholds of their own."""
    own = sum(one.own for one in answer.sites)
    rest = "" if own == len(answer.sites) else f"; elsewhere {TITLES[answer.chosen.kind]}"
    return "sites' own", f"at {own} of {len(answer.sites)} sites, fitted to their held-out rows{rest}"


def _thresholds(repair: dict[str, Any]) -> tuple[str, str]:
    """The score from which each group is predicted the favourable outcome."""
    groups: dict[str, list[dict[str, Any]]] = repair.get("groups", {})
    kind = repair.get("kind", "none")
    if kind == "blind":
        about = "the model's probability is weighed against the group that a second model infers from the features"
        return "a blind rule", f"{about}; nobody's group is asked for"
    if kind == "none" or not groups:
        return "as trained", "the model's own predictions, no threshold was fitted"
    if kind in ("groups", "randomised"):
        shown = [f"{name} {' or '.join(_number(one['threshold']) for one in mix)}" for name, mix in groups.items()]
        several = "one per group" if kind == "groups" else "drawn by group"
        more = f" and {len(shown) - _MOST_TOLD} more" if len(shown) > _MOST_TOLD else ""
        return several, f"favourable from a score of: {', '.join(shown[:_MOST_TOLD])}{more}; as trained, from 0"
    return "one for all", f"favourable from a score of {_number(repair['single'])}; as trained, from 0"


def _number(threshold: float | str) -> str:
    value = float(threshold)
    return f"{value:.2f}" if math.isfinite(value) else "never" if value > 0 else "always"


def payers(answer: Answer, favourable: str) -> list[str]:
    """Who gains and who loses, in words, the largest changes first."""
    if answer.also_most_accurate:
        return ["Nobody pays: the answer is also the most accurate model."]
    pairs = [both for both in zip(_before(answer), answer.scored.groups, strict=True) if both[1].compared]
    pairs.sort(key=lambda pair: -_size(pair[1].selection_rate - pair[0].selection_rate))
    lines = []
    for old, new in pairs[:_MOST_TOLD]:
        lines.append(
            f"{new.group}: {_moved(old.selection_rate, f'are predicted “{favourable}”', new.selection_rate)}. "
            f"Of those whose true outcome is “{favourable}”, "
            f"{_moved(old.true_positive_rate, 'are found', new.true_positive_rate)}. "
            f"{_moved(old.accuracy, 'of predictions are right', new.accuracy)}."
        )
    if len(pairs) > _MOST_TOLD:
        lines.append("The table has all groups.")
    return lines


def who_pays_bars(answer: Answer, favourable: str) -> Table:
    """Each group's rates before (the most accurate model) and after, with 95 % intervals, as bars."""
    heads = (f"predicted “{favourable}”", f"true “{favourable}” found", "right predictions")
    percent_of = f"In percent of each group's {scored_rows(answer)}"
    after = answer.scored.groups
    if answer.also_most_accurate:  # there is nothing to compare with
        rows = [_rates(None, new) for new in after]
        columns = [Column(head, "percent", 1) for head in heads]
        caption = f"{percent_of}, with 95 % intervals (Wilson); seed {answer.best.seed}."
    else:
        rows = [_rates(old, new) for old, new in zip(_before(answer), after, strict=True)]
        columns = [
            Column(head, "percent", 1, graphic="pair", reach=_reach([one.cells[place] for one in rows]))
            for place, head in enumerate(heads, start=2)
        ]
        caption = (
            f"{percent_of}. Upper bar, before: {used(answer.unconstrained)}. Lower bar, after: {used_answer(answer)}. "
            f"Seed {answer.best.seed}. Thin lines are 95 % intervals (Wilson)."
        )
    return Table("", [Column("Group"), Column("rows", "count"), *columns], [Section(rows)], caption, style="pays")


def _before(answer: Answer) -> Sequence[GroupRates]:
    return (answer.before.test or answer.before.validation).groups


def _rates(old: GroupRates | None, new: GroupRates) -> Row:
    """A group's rates, each beside the earlier one, if any."""
    cells = []
    for rate, of in (("selection_rate", "rows"), ("true_positive_rate", "positives"), ("accuracy", "rows")):
        after = getattr(new, rate)
        cell = Cell(after, interval=_interval(after, getattr(new, of)))
        if old is not None:
            before = getattr(old, rate)
            change = signed(after - before, 1) if math.isfinite(after - before) else ""
            ends = _interval(before, getattr(old, of))
            cell = replace(cell, before=before, before_interval=ends, verdict=change)
        cells.append(cell)
    return row(new.group if new.compared else f"{new.group} (not compared)", new.rows, *cells)


def _reach(cells: Sequence[Cell]) -> float:
    """The highest end of the intervals, at which the bars of a column end."""
    ends = [one[1] for cell in cells for one in (cell.interval, cell.before_interval) if one is not None]
    return max(ends, default=1.0) or 1.0


def _interval(rate: float, rows: float) -> Interval | None:
    return wilson(rate * rows, rows) if rows > 0 and math.isfinite(rate) else None


def _moved(before: float, what: str, after: float) -> str:
    old, new = _rate(before), _rate(after)
    return f"{new} {what}{', as before' if new == old else f' instead of {old}'}"


def _rate(value: float) -> str:
    return f"{percent(value, 1)} %" if math.isfinite(value) else "an unknown share"


def _size(change: float) -> float:
    return abs(change) if math.isfinite(change) else 0.0
