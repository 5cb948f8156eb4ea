"""A target at every site: thresholds of its own if its held-out rows suffice, and the scores that they have there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, TypeVar

from ffalm.errors import require
from ffalm.fairness import ScoreHistogram
from ffalm.targets.answer import Answer, SiteAnswer
from ffalm.targets.candidates import LEVELS, MARGIN_COST, judged
from ffalm.targets.repair import Repair, fit
from ffalm.targets.site_thresholds import ENOUGH_ROWS, SiteThresholds, fewest_trials, fit_sites
from ffalm.targets.target import Repair as RepairSetting
from ffalm.targets.target import Scope, Target

F = TypeVar("F", Repair, SiteThresholds)
_ROWS = {"validation": "held-out", "test": "test"}


def with_sites(
    answer: Answer,
    sites: Mapping[str, Mapping[str, ScoreHistogram]],
    scope: Scope,
    repair: RepairSetting,
    group_names: Sequence[str],
) -> Answer:
    """The answer with the chosen model's scores on each site's own rows.

    `sites` are histograms by site and part. Unless the target is for the federation alone, a site gets the best
    thresholds within the target on its own held-out rows, at the confidence of the choice, or less where that would
    cost more than a point of accuracy; with too few rows it keeps the federation's. Where such thresholds leave the
    federation beyond a target that is for both, they are fitted together: see `fit_sites`.
    """
    part = "test" if answer.best.test is not None else "validation"
    sites = {site: parts for site, parts in sites.items() if part in parts}
    require(
        bool(sites) or scope == "federation",
        f"A target for sites needs the owner of every {_ROWS[part]} row: name the column of owners, and leave no owner "
        "out. A real federation keeps sums over sites alone unless its federation.toml has scope = "
        '"sites" or "both"; otherwise each site fits thresholds to its own rows with `ffalm repair`.',
    )
    if not sites:
        return answer
    favourable = next(iter(sites.values()))[part].favourable
    shared, level = Repair.from_plain(answer.best.repair), answer.best.validation.level
    held_out = {site: parts["validation"] for site, parts in sites.items()}
    fitted = SiteThresholds({}, shared)
    if scope != "federation":
        each = {site: own_thresholds(one, answer.target, repair, level) for site, one in held_out.items()}
        fitted = SiteThresholds({site: own for site, own in each.items() if own is not None}, shared)
    if scope == "both" and fitted.sites and repair in ("groups", "randomised"):
        pooled = judged(fitted.tally(held_out), answer.target, favourable, group_names, level, chose=True)
        if pooled.excess(answer.target) > 0:
            fitted = (
                _surest(lambda at: fit_sites(held_out, answer.target, others=shared, level=at), held_out, level)
                or fitted
            )
    found, tallies, chose = [], [], part == "validation"
    for site, parts in sites.items():
        scores = parts[part]
        before, after = (one.tally(scores) for one in (shared, fitted.of(site)))
        tallies.append(after)
        found.append(
            SiteAnswer(
                site,
                site in fitted.sites,
                fitted.of(site).to_plain(group_names),
                *(judged(one, answer.target, scores.favourable, group_names, chose=chose) for one in (before, after)),
            )
        )
    together = None
    if any(one.own for one in found):
        together = judged(reduce(add, tallies), answer.target, favourable, group_names, chose=chose)
    return replace(answer, scope=scope, sites=tuple(found), together=together)


def own_thresholds(held_out: ScoreHistogram, target: Target, repair: RepairSetting, level: float) -> Repair | None:
    """Thresholds fitted to a site's held-out rows; None if these are too few, or none are allowed."""
    if repair == "none" or fewest_trials(held_out, target) < ENOUGH_ROWS:
        return None
    return _surest(lambda at: fit(held_out, target, repair, level=at), held_out, level)


def _surest(fitted_at: Callable[[float], F | None], held_out: Any, most: float) -> F | None:
    """What is fitted at the largest confidence up to `most` that costs at most a point of accuracy on these rows."""
    plain = fitted_at(LEVELS[-1])
    if plain is None:
        return None
    enough = plain.tally(held_out).accuracy() - MARGIN_COST
    surer = (fitted_at(level) for level in LEVELS[:-1] if level <= most)
    return next((one for one in surer if one and one.tally(held_out).accuracy() >= enough), plain)
