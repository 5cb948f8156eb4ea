"""Leave-one-site-out: a model's scores at a site that did not train it, next to those of a model that it did train.

One study of all sites in `with-all`, and one for each site in `without-SITE`, each an ordinary study that can be
resumed and reported by itself.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ffalm.config import parse, read
from ffalm.errors import UserError, require
from ffalm.fairness import Tally
from ffalm.outcome import HEADLINE, Outcome
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.report.tables import Column, Section, Table, row
from ffalm.studies.grid import problem_without
from ffalm.studies.results import Study
from ffalm.studies.study import compare
from ffalm.system.files import path_of, write_atomic

_ALL = "with-all"
_FILE = "leave-one-out"


@dataclass(frozen=True)
class SiteOutcome:
    """An algorithm trained without a site and with it, scored at that site, as means over seeds.

    Seeds in which one of the two diverged are left out of both means, which are NaN if no seed remains.
    """

    site: str
    label: str  # of the algorithm
    rows: int  # all rows of the site, on which the model trained without it is scored
    left_out: dict[str, float]
    member_rows: int  # the site's test rows
    member: dict[str, float]
    diverged: int = 0  # seeds that are left out


RunStudy = Callable[[str | None, Path, bool], Study]
"""Computes the study without a site, or with all, in a folder of its own; the last says whether to resume it."""


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """The studies, and their results at each site."""

    whole: Study
    without: dict[str, Study]  # by site
    folder: Path
    notes: tuple[str, ...] = ()  # on sites that cannot be left out

    @property
    def sites(self) -> list[SiteOutcome]:
        """One entry for each algorithm and site."""
        labels = dict.fromkeys(run.label for run in self.whole.results)
        return [self._outcome(label, site) for label in labels for site in self.without]

    def table(self) -> Table:
        """Accuracy and gaps at each site, left out and as a member, one section per algorithm."""
        heads = [Column("rows", "count"), *(Column(title, "percent", 1) for title in ("acc.", "DPD", "EOD"))]
        columns = [Column(one.head, one.kind, one.decimals, over) for over in ("left out", "member") for one in heads]
        sites, seeds = self.sites, len({run.seed for run in self.whole.results})
        sections = [
            Section(
                [
                    row(
                        one.site,
                        one.rows,
                        *one.left_out.values(),
                        one.member_rows,
                        *one.member.values(),
                        note=f"{one.diverged} of {seeds} seeds left out because a run diverged" * bool(one.diverged),
                    )
                    for one in sites
                    if one.label == label
                ],
                label,
            )
            for label in dict.fromkeys(one.label for one in sites)
        ]
        caption = (
            "In percent, means over seeds, of models as trained. Left out: trained without the site, scored on all of "
            "its rows; member: trained with it, scored on its test rows."
        )
        return Table("Leave one site out", [Column("Site"), *columns], sections, caption, notes=self.notes)

    def write(self) -> dict[str, Path]:
        """The table as Markdown and CSV, into the folder."""
        page = [to_markdown(self.table()).rstrip("\n"), *self.notes]
        contents = {"md": "\n\n".join(page) + "\n", "csv": to_csv(self._tidy())}
        return {end: write_atomic(self.folder / f"{_FILE}.{end}", content) for end, content in contents.items()}

    def records(self) -> list[dict[str, Any]]:
        """One record for each algorithm and site, for machines."""
        return self._tidy().records()

    def _tidy(self) -> Table:
        names = [*(f"left_out_{name}" for name in HEADLINE), "member_rows", *(f"member_{name}" for name in HEADLINE)]
        names.append("diverged")
        rows = [
            row(
                one.label,
                one.site,
                one.rows,
                *one.left_out.values(),
                one.member_rows,
                *one.member.values(),
                one.diverged,
            )
            for one in self.sites
        ]
        return Table("", [Column(name) for name in ("algorithm", "site", "rows", *names)], [Section(rows)])

    def _outcome(self, label: str, site: str) -> SiteOutcome:
        alone, together = _finished(self.without[site], label), _finished(self.whole, label)
        seeds = [seed for seed in together if seed in alone]
        own = [self._own_tally(together[seed], site) for seed in seeds]
        rows = sum(sum(map(sum, one)) for one in self.without[site].results[0].confusion or ())
        return SiteOutcome(
            site,
            label,
            int(rows),
            _means([alone[seed].test for seed in seeds]),
            int(self._own_tally(self.whole.results[0], site).count.sum()),
            _means([one.metrics(self.whole.record.favourable) for one in own]),
            sum(run.label == label for run in self.whole.results) - len(seeds),
        )

    def _own_tally(self, run: Outcome, site: str) -> Tally:
        """Of a model that all sites trained, on a site's test rows."""
        scores = self.whole.client_scores(run)[site]["test"]
        return scores.tally([scores.as_trained or 0] * scores.groups)


def _finished(study: Study, label: str) -> dict[int, Outcome]:
    """The runs of an algorithm that have a result, by seed."""
    return {run.seed: run for run in study.results if run.label == label and run.diverged is None}


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(one[name] for one in metrics) if metrics else math.nan for name in HEADLINE}


def leave_one_out(
    data: str | os.PathLike[str] = "census", algorithms: Any = None, *, out: str | os.PathLike[str], **keywords: Any
) -> LeaveOneOut:
    """Train without each site in turn: how does a model do at a site that did not help to train it?

    The data must name the owners of its rows. `out` is the folder of all studies, and studies that it holds are
    resumed. `algorithms` and the other keywords are those of `compare`.
    """
    require(
        isinstance(data, str | os.PathLike),
        "Sites are left out of data that names their rows' owners: give a source by its name, or a table by its path.",
    )
    for name in ("leave_out", "resume"):
        require(name not in keywords, f"`leave_one_out` sets {name!r} itself: leave it out.")

    def run(leave_out: str | None, folder: Path, resume: bool) -> Study:
        return compare(data, algorithms, leave_out=leave_out, out=folder, resume=resume, **keywords)

    return run_each(run, path_of(out))


def run_each(run: RunStudy, folder: Path, on_study: Callable[[str], None] | None = None) -> LeaveOneOut:
    """Compute all studies; `on_study` is called with the name of each folder before its study is computed."""
    tell = on_study or (lambda name: None)

    def computed(leave_out: str | None, name: str) -> Study:
        tell(name)
        return run(leave_out, folder / name, (folder / name / "config.toml").exists())

    whole = computed(None, _ALL)
    sites = [str(one["client"]) for one in whole.record.clients]
    if not whole.client_scores(whole.results[0]):
        raise UserError("Sites can be left out in turn where the data names them: name its owner column.")
    require(len(sites) > 1, "Leaving a site out needs at least two sites.")
    config = parse(read(whole.folder / "config.toml"))
    problems = {site: problem for site in sites if (problem := problem_without(config, site)) is not None}
    if len(problems) == len(sites):
        raise problems[sites[0]]
    names = {site: name for site, name in _folder_names(sites).items() if site not in problems}
    notes = tuple(f"{site} cannot be left out: {problem}" for site, problem in problems.items())
    done = LeaveOneOut(whole, {site: computed(site, name) for site, name in names.items()}, folder, notes)
    done.write()
    return done


def _folder_names(sites: list[str]) -> dict[str, str]:
    """A folder name for each site, whatever characters its name has."""
    found: dict[str, str] = {}
    for number, site in enumerate(sites):
        name = f"without-{re.sub(r'[^A-Za-z0-9._-]', '_', site)}"[:100]
        taken = {other.casefold() for other in found.values()}  # on macOS and Windows North and north are one folder
        found[site] = name if name.casefold() not in taken else f"{name}-{number}"
    return found
