"""The answer to a study's fairness target, in sentences and tables, for terminal, page and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ffalm.report.answer_words import choice_rows, name_of, name_of_answer, over_seeds, scored_rows
from ffalm.report.summary import metric_title
from ffalm.report.tables import Cell, Column, Row, Section, Table, percent, row
from ffalm.targets.answer import Answer, Candidate, GroupRates, Part, Scores
from ffalm.targets.target import TITLES, Bound, Target

#: For an answer with thresholds by group; the alternatives without the group follow it.
NEEDS_GROUP = "Thresholds by group need each person's group at prediction, which some uses forbid by law: "
_WITHOUT_GROUP = (
    "--repair single or --repair blind answers without it, where the group is no feature either "
    "(--set data.use_group_as_feature=false)."
)
#: The same of a real federation.
_WITHOUT_GROUP_AT_SITES = (
    'repair = "single" or "blind" in federation.toml answers without it, where the group is no feature either '
    "(use_group_as_feature = false)."
)
_RARE_LABEL = (
    "Where one label is rare, or features say little about it, no model is much more accurate than the most frequent "
    "label: ffalm repair finds thresholds by the costs of wrong predictions instead."
)
_BRIEF = 7  # candidates that a terminal shows
_MOST_FACTOR = 100  # a factor by which somebody might collect more rows
_WHERE = {"federation": "", "sites": " at every site", "both": " together and at every site"}


def how_chosen(answer: Answer) -> str:
    """Which rows decided the choice."""
    rows = choice_rows(answer)
    if answer.best.test is not None:
        return f"Thresholds and the choice rest on the same {rows}. Test rows were used for these scores alone."
    return (
        f"There are no test rows: the {rows} of these scores are those that thresholds were fitted to and the model "
        "was chosen on. Expect somewhat larger gaps on others; only test rows can show that a target is met with "
        "confidence."
    )


def sentences(answer: Answer) -> list[str]:
    """The answer, how sure it is, what it costs and what it needs, in reading order."""
    best, seeds = answer.best, len(answer.chosen.runs)
    scored = answer.scored
    rows = scored_rows(answer)
    gaps = "; ".join(gap_sentence(bound, scored) for bound in answer.target.bounds)
    which = f" (seed {best.seed})" if seeds > 1 else ""
    lines = [
        f"{name_of_answer(answer)}{which}: accuracy {percent(scored.metrics['accuracy'], 1)} % on {rows}, {gaps}. "
        f"{answer.target}{_WHERE[answer.scope]}: {answer.verdict}.",
        *_degenerate(answer),
    ]
    lines += site_sentences(answer)
    if best.test is not None:
        if seeds > 1:
            shared = " with shared thresholds" if answer.together else ""
            lines.append(
                f"Over {seeds} seeds{shared}: mean accuracy {percent(answer.chosen.mean('accuracy'), 1)} %, "
                + ", ".join(
                    f"mean {metric_title(bound.metric)} {bound_number(bound, answer.chosen.mean(bound.metric))}"
                    for bound in answer.target.bounds
                )
                + f"; the target held on test rows in {answer.chosen.held(answer.target)} of {seeds}."
            )
        lines += _cost(answer)
    lines += _doubts(answer, scored)
    if answer.chosen.kind in ("groups", "randomised"):
        lines.append(NEEDS_GROUP + (_WITHOUT_GROUP_AT_SITES if answer.federated else _WITHOUT_GROUP))
    if answer.chosen.kind == "randomised":
        lines.append(
            "Thresholds are drawn for each row from its own content, and apart for rows of the same content: the same "
            "file gets the same answers."
        )
    return [*lines, how_chosen(answer), *answer.notes]


def gap_sentence(bound: Bound, scored: Scores) -> str:
    """A gap with its confidence bound."""
    end = "at most" if bound.at_most else "at least"
    value, limit = scored.metrics[bound.metric], scored.ends[bound.metric]
    if math.isnan(value):
        return f"{metric_title(bound.metric)} undefined"
    sure = f"{end} {bound_number(bound, limit)} with {percent(scored.level, 0)} % confidence"
    return f"{metric_title(bound.metric)} {bound_number(bound, value)} ({sure})"


def mean_gaps(candidate: Candidate, target: Target, part: Part = "test") -> str:
    """A candidate's gaps, means over seeds."""
    return ", ".join(
        f"{metric_title(bound.metric)} {bound_number(bound, candidate.mean(bound.metric, part))}"
        for bound in target.bounds
    )


def bound_number(bound: Bound, value: float) -> str:
    """A gap in points, or a ratio."""
    if math.isnan(value):
        return "undefined"
    return percent(value, 1) if bound.at_most else f"{value:.2f}"


def _cost(answer: Answer) -> list[str]:
    if answer.also_most_accurate:
        free_of_cost = ": the target costs no accuracy" if answer.verdict.startswith("met") else ""
        return [f"It is also the most accurate candidate of all{free_of_cost}."]
    cost, free, over = answer.cost, answer.compared, over_seeds(answer)
    change = f"costs {percent(cost, 1)} points" if cost >= 0.0005 else f"gains {percent(-cost, 1)} points"
    change = "costs nothing" if abs(cost) < 0.0005 else change
    return [
        f"It {change} of test accuracy{f' ({over})' if over else ''} compared with the candidate that is most accurate "
        f"on {choice_rows(answer)} regardless of its gaps: {name_of(free)}, {percent(free.mean('accuracy'), 1)} %, "
        f"{mean_gaps(free, answer.target)}."
    ]


def _degenerate(answer: Answer) -> list[str]:
    """Why the answer must not be used whatever its verdict: the small gap of a degenerate model means nothing."""
    if answer.chosen.degenerate:
        return [f"Do not use it: every candidate is degenerate; of this one, {answer.chosen.degenerate}. {_RARE_LABEL}"]
    return [f"Do not use it: it is degenerate on these rows: {answer.degenerate}."] if answer.degenerate else []


def unjudged(target: Target, scored: Scores, rows: str, remedy: str) -> list[str]:
    """Why a target cannot be judged on these rows: which groups lack the rows for a gap."""
    unknown = scored.undefined(target)
    if not unknown:
        return []
    gaps = " and ".join(metric_title(bound.metric) for bound in unknown)
    compared = [one for one in scored.groups if one.compared]
    empty = [one.group for one in compared if one.rows == 0]
    without = [one.group for one in compared if one.positives == 0]
    lacking = f": {_have(empty)} none there" if empty else ""
    if not empty and without and any(bound.metric in ("eod", "equalized_odds") for bound in unknown):
        lacking = f": {_have(without)} none there whose true outcome is the favourable one"
    verb = "is" if len(unknown) == 1 else "are"
    return [f"{gaps} {verb} undefined on {rows}{lacking}.{f' {remedy}' if lacking else ''}"]


def _have(groups: Sequence[str]) -> str:
    return f"{', '.join(groups)} {'has' if len(groups) == 1 else 'have'}"


def _remedy(answer: Answer) -> str:
    setting = "min_group_size = 30 under [data]" if answer.federated else "--set data.min_group_size=30"
    return f"{setting} scores groups of fewer training rows and compares the others; or correct these rows."


def _doubts(answer: Answer, scored: Scores) -> list[str]:
    part = "test rows" if answer.best.test is not None else "held-out rows"
    if answer.verdict == "cannot be judged":
        return unjudged(answer.target, scored, part, _remedy(answer))
    lines = unjudged(answer.target, answer.best.validation, choice_rows(answer), _remedy(answer))
    if answer.chosen.within(answer.target) < len(answer.chosen.runs):
        rows = f"the {choice_rows(answer)} of every seed"
        if any(one.within(answer.target) == len(one.runs) for one in answer.candidates):
            lines.append(f"Only degenerate candidates are within the target on {rows}; of the others it comes nearest.")
        else:
            lines.append(f"No candidate is within the target on {rows}; this one comes nearest.")
            lines += _too_few(answer)
    elif answer.verdict == "not met" and answer.scope == "federation":
        lines += _missed(answer, scored)
    if answer.verdict == "met in the sample":
        return [*lines, *rows_to_confirm(answer.target, scored)]
    return [*lines, *(_not_ruled_out(answer.target, scored) if scored.verdict(answer.target) == "not met" else [])]


def _missed(answer: Answer, scored: Scores) -> list[str]:
    """What to do if the choice was within the target on the rows that decided, but is not on new ones."""
    level, smallest = answer.best.validation.level, scored.smallest
    part = "test" if answer.best.test is not None else "these"
    margin = "--confidence 0.95 leaves a larger margin, and " if level < 0.95 and not answer.federated else ""
    few = "" if smallest is None else f" of {smallest.group}, the smallest group ({smallest.rows:,.0f} there),"
    return [
        f"It was within the target on {choice_rows(answer)} and is not on {part} rows: {margin}more rows{few} make the "
        "choice surer."
    ]


def _not_ruled_out(target: Target, scored: Scores) -> list[str]:
    """Gaps that exceed the target and whose intervals reach it."""
    possible = []
    for bound in target.bounds:
        if not bound.meets(scored.metrics[bound.metric]):
            end = scored.others.get(bound.metric, math.nan)
            if not bound.meets(end):
                return []
            far = "low" if bound.at_most else "high"
            possible.append(f"{metric_title(bound.metric)} may be as {far} as {bound_number(bound, end)}")
    confidence = f"({100 * scored.level:g} % confidence)"
    return [f"These rows are too few to rule the target out: {' and '.join(possible)} {confidence}."]


def rows_to_confirm(target: Target, scored: Scores) -> list[str]:
    """How many rows would turn "met in the sample" into "met with confidence", if that is known.

    Nothing if these are enough but are not test rows.
    """
    if target.meets(scored.ends):
        return []
    factor, smallest = scored.rows_factor(target), scored.smallest
    if factor is None or not math.isfinite(factor):
        return []
    if factor > _MOST_FACTOR:
        return [
            f"A gap so near its bound takes over {_MOST_FACTOR} times as many rows to confirm: a stricter target "
            "leaves a margin."
        ]
    total = sum(one.rows for one in scored.groups)
    of_smallest = (
        "" if smallest is None else f"; of {smallest.group}, the smallest group, {_more(factor, smallest.rows)}"
    )
    return [
        f"To confirm gaps of this size with 95 % confidence takes about {_grown(factor)} rows "
        f"({_more(factor, total)}{of_smallest}), in the same shares."
    ]


def _grown(factor: float) -> str:
    return f"{factor:.1f} times as many" if factor >= 1.95 else f"{math.ceil(100 * (factor - 1))} % more"


def _too_few(answer: Answer) -> list[str]:
    """How many rows are needed, if on these even equal rates could not meet the target with enough confidence."""
    scores = answer.best.validation
    factor, smallest = scores.margin_factor(answer.target), scores.smallest
    if smallest is None or not 1 < factor < math.inf:
        return []
    return [
        f"Even equal rates would not be within it at {percent(scores.level, 0)} % confidence on so few "
        f"{choice_rows(answer)}: it takes about {_more(factor, smallest.rows)} of {smallest.group}, the smallest group."
    ]


def _more(factor: float, rows: float) -> str:
    return f"{math.ceil(factor * rows):,} instead of {rows:,.0f}"


def site_sentences(answer: Answer) -> list[str]:
    """At how many sites the target holds, and which have thresholds of their own."""
    if not answer.sites:
        return []
    verdicts = [one.verdict(answer.target) for one in answer.sites]
    judged, held = sum(one is not None for one in verdicts), sum(one not in (None, "not met") for one in verdicts)
    lines = [f"On sites' own rows the target holds at {held} of {judged} sites."]
    if judged == 0:
        lines = ["No site has rows of each group, which it takes to say whether the target holds there."]
    elif judged < len(verdicts):
        lacking = [one.site for one, verdict in zip(answer.sites, verdicts, strict=True) if verdict is None]
        lines.append(f"Too few rows of each group to say at {', '.join(lacking)}.")
    if answer.scope != "federation":
        own = [one.site for one in answer.sites if one.own]
        rest = [one.site for one in answer.sites if not one.own]
        if own:
            lines.append(f"Sites with thresholds of their own: {', '.join(own)}.")
        if rest:
            lines.append(f"Too few held-out rows for that at {', '.join(rest)}: the federation's thresholds apply.")
    return [" ".join(lines)]


def sites(answer: Answer) -> Table | None:
    """The model on each site's own rows, before and after the site's own thresholds; None if sites are unknown."""
    if not answer.sites:
        return None
    metrics = [bound.metric for bound in answer.target.bounds]
    own = answer.scope != "federation"
    moments = ("before", "after") if own else ("after",)
    columns = [
        Column(moment if own else metric_title(name), "percent", 1, over=metric_title(name) if own else "")
        for name in ("accuracy", *metrics)
        for moment in moments
    ]
    rows = [
        row(
            one.site,
            sum(group.rows for group in one.after.groups),
            *(getattr(one, moment).metrics[name] for name in ("accuracy", *metrics) for moment in moments),
            *(["own" if one.own else "federation's"] if own else []),
            one.verdict(answer.target) or "unknown",
        )
        for one in answer.sites
    ]
    heads = [Column("Site"), Column("rows", "count"), *columns, *([Column("thresholds")] if own else [])]
    part = "test" if answer.best.test is not None else "held-out"
    how = "; before: with the federation's thresholds, after: with those that the site gets" if own else ""
    caption = f"In percent of each site's own {part} rows{how}; verdict: whether {answer.target} holds there."
    return Table("Sites", [*heads, Column("verdict")], [Section(rows)], caption)


def who_pays(answer: Answer) -> Table:
    """Each group's rates before (the most accurate model) and after, on test rows."""
    before, after = answer.before.test or answer.before.validation, answer.scored
    caption = f"Before: {name_of(answer.unconstrained)}; after: {name_of_answer(answer)}; seed {answer.best.seed}."
    return rates_of_groups(before.groups, after.groups, caption)


def rates_of_groups(before: Sequence[GroupRates], after: Sequence[GroupRates], caption: str) -> Table:
    """Each group's rates before and after a repair."""
    heads = ("selected", "found", "accuracy")
    columns = [Column(part, "percent", 1, over=head) for head in heads for part in ("before", "after")]
    rows = []
    for old, new in zip(before, after, strict=True):
        pairs = (
            (old.selection_rate, new.selection_rate),
            (old.true_positive_rate, new.true_positive_rate),
            (old.accuracy, new.accuracy),
        )
        note = "" if new.compared else "not compared"
        rows.append(row(new.group, new.rows, *(value for pair in pairs for value in pair), note=note))
    legend = (
        "In percent of the group; selected: predicted the favourable outcome; found: of those whose true outcome it is."
    )
    whole = f"{caption} {legend}"
    return Table("Who pays", [Column("Group"), Column("rows", "count"), *columns], [Section(rows)], whole)


def candidates(answer: Answer, brief: bool = False) -> Table:
    """The candidates on the rows of the choice and on test rows; means over seeds.

    `brief` is for terminals: the chosen one and the most accurate others, with their test scores.
    """
    asked = [bound.metric for bound in answer.target.bounds]
    metrics = ["accuracy", *(asked if brief else dict.fromkeys([*asked, "dpd", "eod"]))]
    parts: tuple[Part, ...] = ("test",) if brief else ("validation", "test")
    rows_of: dict[Part, str] = {"validation": choice_rows(answer), "test": "test rows"}
    columns = [
        Column(metric_title(name), "percent", 1, over="" if brief else rows_of[part])
        for part in parts
        for name in metrics
    ]
    ordered = sorted(answer.candidates, key=lambda one: -one.mean("accuracy", "validation"))
    if brief:
        ends = (answer.chosen, answer.unconstrained)
        others = [
            one for one in ordered if not any(one is end for end in ends) and one.within(answer.target) == len(one.runs)
        ]
        ordered = [answer.chosen, *others[: _BRIEF - 2], *([ends[1]] if ends[0] is not ends[1] else [])]
    rows: list[Row] = []
    for one in ordered:
        means = [one.mean(name, part) for part in parts for name in metrics]
        chosen = one is answer.chosen
        note = "; ".join(["chosen"] * chosen + [f"degenerate: {one.degenerate}"] * bool(one.degenerate))
        held = f"{one.held(answer.target)} of {len(one.runs)}"
        names = [Cell(text, bold=chosen) for text in (one.label, TITLES[one.kind])]
        rows.append(row(*names, *(Cell(mean, bold=chosen) for mean in means), held, note="" if brief else note))
    more = len(answer.candidates) - len(ordered)
    caption = (
        f"Test rows in percent, means over seeds; held: seeds in which {answer.target} held there. The answer first, "
        f"then the next within the target on {choice_rows(answer)}, last the most accurate of all"
        f"{f'; the report has {more} more' if more else ''}."
        if brief
        else f"Means over seeds in percent, most accurate on {choice_rows(answer)} first; held: in how many seeds "
        f"{answer.target} held on test rows."
    )
    if {"accurate", "single"} & {one.kind for one in ordered}:
        caption += (
            f" The {TITLES['accurate']} and {TITLES['single']} are the same for all rows: the former is chosen for "
            "accuracy alone, the latter within the target."
        )
    heads = [Column("Algorithm"), Column("Thresholds"), *columns, Column("held")]
    return Table("Candidates", heads, [Section(rows)], caption)


def to_plain(answer: Answer) -> dict[str, Any]:
    """`answer.json`: the chosen model, its thresholds, scores and verdict."""
    best = answer.best
    return {
        "target": str(answer.target),
        "verdict": answer.verdict,
        "degenerate": answer.degenerate or None,
        "alpha": answer.chosen.alpha,
        "algorithm": answer.chosen.label,
        "seed": best.seed,
        "run": best.run,
        "repair": best.repair,
        "test": answer.test,
        "bounds": answer.bounds,
        "held_out": best.validation.metrics,
        "training_rows": answer.training_rows,
        "cost_in_accuracy": answer.cost,
        "scope": answer.scope,
        "sites": [
            {
                "site": one.site,
                "own_thresholds": one.own,
                "repair": one.repair,
                "before": one.before.metrics,
                "after": one.after.metrics,
                "verdict": one.verdict(answer.target),
            }
            for one in answer.sites
        ],
        "held_on_test": {"seeds": answer.chosen.held(answer.target), "of": len(answer.chosen.runs)},
        "explanation": sentences(answer),
        "candidates": candidates(answer).records(),
    }
