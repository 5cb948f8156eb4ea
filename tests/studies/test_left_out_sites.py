"""Every site left out in turn: studies in folders of their own, one table, resumed where it was stopped."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ffalm
from ffalm.errors import UserError
from ffalm.report.rendering import to_markdown
from ffalm.studies.left_out_sites import _folder_names, run_each
from ffalm.studies.results import Study

SITES = ("east/1", "north", "south")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(0)
    sex, bank = draw.integers(0, 2, 600), draw.integers(0, 3, 600)
    score = draw.normal(size=600) + sex
    frame = pd.DataFrame({"score": score, "sex": sex, "bank": np.array(SITES)[bank], "paid": (score > 0.5) * 1})
    path = tmp_path_factory.mktemp("loans") / "loans.csv"
    frame.to_csv(path, index=False)
    return path


ASKED: dict[str, Any] = {"label": "paid", "group": "sex", "favourable": 1, "owner": "bank", "seeds": 2, "rounds": 1}
ASKED |= {"algorithms": "fedavg", "model": "linear", "engine": "loop"}


@pytest.fixture(scope="module")
def done(table: Path, tmp_path_factory: pytest.TempPathFactory) -> ffalm.LeaveOneOut:
    return ffalm.leave_one_out(table, out=tmp_path_factory.mktemp("out"), **ASKED)


def test_every_site_is_scored_on_all_its_rows_left_out_and_on_its_test_rows_as_a_member(
    done: ffalm.LeaveOneOut, table: Path
) -> None:
    rows = pd.read_csv(table)["bank"].value_counts()
    assert [one.site for one in done.sites] == list(SITES)
    assert [one.rows for one in done.sites] == [rows[site] for site in SITES]
    assert sum(one.member_rows for one in done.sites) == np.array(done.whole.results[0].confusion).sum()
    left_out = [run.test["accuracy"] for run in done.without["north"].results]
    assert done.sites[1].left_out["accuracy"] == pytest.approx(np.mean(left_out))
    scores = [done.whole.client_scores(run)["north"]["test"] for run in done.whole.results]
    members = [one.tally([256, 256]).accuracy() for one in scores]
    assert done.sites[1].member["accuracy"] == pytest.approx(np.mean(members))


def test_the_members_rows_make_up_the_whole_test_part(done: ffalm.LeaveOneOut) -> None:
    for run in done.whole.results:
        own = done.whole.client_scores(run)
        right = sum(one["test"].tally([256, 256]).accuracy() * int(one["test"].counts.sum()) for one in own.values())
        assert right / np.array(run.confusion).sum() == pytest.approx(run.test["accuracy"])


def test_the_table_is_written_beside_the_studies(done: ffalm.LeaveOneOut) -> None:
    folders = {"with-all", "without-east_1", "without-north", "without-south"}
    assert {path.name for path in done.folder.iterdir()} == folders | {"leave-one-out.md", "leave-one-out.csv"}
    with (done.folder / "leave-one-out.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [one["site"] for one in found] == list(SITES)
    assert float(found[0]["left_out_accuracy"]) == pytest.approx(done.sites[0].left_out["accuracy"])
    assert "| north" in (done.folder / "leave-one-out.md").read_text()


def diverging(study: Study, seeds: tuple[int, ...]) -> Study:
    runs = [replace(run, diverged="It diverged." if run.seed in seeds else None) for run in study.results]
    return Study(study.record, runs, study.folder)


def test_seeds_that_diverged_are_left_out_of_both_means(done: ffalm.LeaveOneOut) -> None:
    without = {**done.without, "north": diverging(done.without["north"], (0,))}
    of_one = replace(done, without=without).sites[1]
    assert of_one.left_out["accuracy"] == done.without["north"].results[1].test["accuracy"]
    member = done.whole.client_scores(done.whole.results[1])["north"]["test"]
    assert of_one.member["accuracy"] == pytest.approx(member.tally([256, 256]).accuracy())
    none = replace(done, whole=diverging(done.whole, (0, 1)))
    assert [one.rows for one in none.sites] == [one.rows for one in done.sites]
    assert all(np.isnan([*one.left_out.values(), *one.member.values()]).all() for one in none.sites)
    assert none.records()[0]["diverged"] == 2
    assert "2 of 2 seeds left out" in to_markdown(none.table())


def test_what_is_done_is_not_computed_again(done: ffalm.LeaveOneOut, table: Path) -> None:
    told: list[str] = []
    again = ffalm.leave_one_out(table, out=done.folder, on_round=lambda plan, record: told.append(plan.title), **ASKED)
    assert told == [] and again.sites == done.sites


def test_sites_must_be_known_and_more_than_one(done: ffalm.LeaveOneOut, table: Path, tmp_path: Path) -> None:
    plain = {**ASKED, "owner": None, "seeds": 1}
    with pytest.raises(UserError, match="name its owner column"):
        ffalm.leave_one_out(table, out=tmp_path, **plain)
    with pytest.raises(UserError, match=r"ffalm.leave_one_out"):
        ffalm.compare(table, leave_out="each", **ASKED)
    with pytest.raises(UserError, match="give a source by its name"):
        ffalm.leave_one_out(ffalm.load("census", rows=300), out=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="sets 'leave_out' itself"):
        ffalm.leave_one_out(table, out=tmp_path, leave_out="north", **ASKED)


def test_a_site_that_alone_has_a_groups_rows_is_named_and_the_others_are_left_out(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table).astype({"sex": str})
    rare = (frame["bank"] == "north") & (frame["sex"] == "1") & (frame.index % 2 == 0)
    frame.loc[rare, "sex"] = "2"
    frame.to_csv(tmp_path / "loans.csv", index=False)
    done = ffalm.leave_one_out(tmp_path / "loans.csv", out=tmp_path / "out", **{**ASKED, "seeds": 1})
    assert [one.site for one in done.sites] == ["east/1", "south"]
    (note,) = done.notes
    assert note.startswith("north cannot be left out: No client has a row of group '2'")
    assert note in (tmp_path / "out" / "leave-one-out.md").read_text()


def test_folders_of_sites_with_odd_names_differ() -> None:
    assert list(_folder_names(["a/b", "a:b", "c"]).values()) == ["without-a_b", "without-a_b-1", "without-c"]
    assert list(_folder_names(["North", "north"]).values()) == ["without-North", "without-north-1"]


def test_studies_are_told_by_their_folders_in_order(done: ffalm.LeaveOneOut) -> None:
    told: list[str] = []
    stored = dict[str | None, Study](done.without) | {None: done.whole}

    def load(leave_out: str | None, folder: Path, resume: bool) -> Study:
        assert resume
        return stored[leave_out]

    run_each(load, done.folder, told.append)
    assert told == ["with-all", "without-east_1", "without-north", "without-south"]
