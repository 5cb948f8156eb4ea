"""Cells of few rows stay at the site, and everybody is told which."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federate.makers import Simulated, World, config, people, site_folder, world

from ffalm.data.types import Task
from ffalm.engines.remote.message import Failure, Message
from ffalm.fairness import ScoreHistogram, Tally
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.disclosure import Disclosed, Scored, cells, spread, withheld

TASK = Task("t", "loan", "sex", ("no", "yes"), ("female", "male"))


def tally(counts: list[list[int]]) -> Tally:
    """A Tally of so many rows per (label, group), all predicted as 1."""
    found = torch.tensor(counts)
    return Tally(torch.stack([torch.zeros_like(found), found]), found.double() * 0.5)


def test_small_cells_are_withheld_with_their_counts_and_losses_and_others_stay_exact() -> None:
    told = Disclosed.of(tally([[12, 9], [10, 0]]), 10)
    assert told.tally.count.tolist() == [[12, 0], [10, 0]]
    assert told.tally.loss.tolist() == [[6.0, 0.0], [5.0, 0.0]]
    assert told.withheld.tolist() == [[False, True], [False, True]]
    assert cells(told.withheld, TASK) == ["loan no, sex male", "loan yes, sex male"]


def test_a_histogram_lacks_the_cells_that_the_tally_lacks() -> None:
    counts = torch.zeros(512, 1, 2, 2, dtype=torch.int64)
    counts[:12, 0, 0, 0], counts[100, 0, 0, 1], counts[300, 0, 1, 0] = 1, 9, 10
    told = Disclosed.of(tally([[12, 9], [10, 0]]), 10, ScoreHistogram(counts))
    assert told.histogram is not None
    assert told.histogram.counts.sum((0, 1)).tolist() == told.tally.count.tolist() == [[12, 0], [10, 0]]


def test_where_one_row_is_enough_nothing_is_withheld() -> None:
    for least in (0, 1):
        told = Disclosed.of(tally([[1, 0], [3, 2]]), least)
        assert not told.withheld.any() and told.tally.count.tolist() == [[1, 0], [3, 2]]


def test_pooled_cells_are_the_sum_of_what_was_told() -> None:
    counts = {"north": [[12, 9], [10, 30]], "south": [[11, 20], [3, 15]]}
    both = Scored.of({site: Disclosed.of(tally(own), 10) for site, own in counts.items()}, TASK).tally
    assert both.count.tolist() == [[23, 20], [10, 45]]


def test_a_record_keeps_everything() -> None:
    told = Disclosed.of(tally([[12, 9], [10, 30]]), 10)
    back = Disclosed.from_record(told.record())
    assert torch.equal(back.tally.confusion, told.tally.confusion) and torch.equal(back.withheld, told.withheld)


def test_a_small_site_withholds_its_cells_and_the_result_says_so(tmp_path: Path) -> None:
    sites = world(tmp_path, (300, 300, 40))
    plan = config(rules={"min_group": 8}, training={"rounds": 2})
    outcome = coordinate(plan, tmp_path / "run", sites, pause=0.001)
    entries = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"]
    assert entries[2]["withheld"]["test"] and not entries[0]["withheld"].get("test")
    small = torch.tensor(entries[2]["rows"]["test"])
    assert bool(((small >= 8) | (small == 0)).all()) and bool((small == 0).any())
    notes = json.loads((tmp_path / "run" / "result.json").read_text())["notes"]
    assert any("'west' withholds" in note for note in notes)
    assert "'west' withholds" in (tmp_path / "run" / "report.md").read_text()
    told = Simulated(plan, sites.folders, tmp_path / "run")
    model = told.rounds(set())[-1].snapshot.model
    task = told.agreement.task
    by_site = {
        str(place): Disclosed.of(told._learner.score(model, part["test"]), 8) for place, part in enumerate(told.parts)
    }
    assert outcome.test == Scored.of(by_site, task).tally.metrics(1)
    assert outcome.test != told.metrics(model, "test", [0, 1, 2])


def test_no_count_of_a_withheld_cell_leaves_the_site(tmp_path: Path) -> None:
    sites = world(tmp_path, (300, 300, 40))
    given: list[dict[str, torch.Tensor]] = []
    answer = sites._answer

    def listening(kind: Any, name: str, message: Message) -> Message | Failure:
        found = answer(kind, name, message)
        if name == "west" and isinstance(found, Message):
            given.extend(found.tensors[part] for part in ("validation", "test") if part in found.tensors)
        return found

    sites._answer = listening  # type: ignore[method-assign]
    coordinate(config(rules={"min_group": 8}, training={"rounds": 2}), tmp_path / "run", sites, pause=0.001)
    assert len(given) == 4
    for record in given:
        assert bool(record["withheld"].any())
        assert not record["confusion"][:, record["withheld"]].any() and not record["loss"][record["withheld"]].any()


def test_a_cell_that_every_site_withholds_leaves_metrics_undefined_and_a_note(tmp_path: Path) -> None:
    folders = {name: site_folder(tmp_path / "s", name, people(60, n)) for n, name in enumerate(("north", "south"))}
    plan = config(("north", "south"), rules={"min_group": 20}, training={"rounds": 1})
    outcome = coordinate(plan, tmp_path / "run", World(folders), pause=0.001)
    assert math.isnan(outcome.test["dpd"])
    assert "No site sends any test row with loan yes, sex male" in (tmp_path / "run" / "report.md").read_text()


@pytest.mark.parametrize(
    ("counts", "hidden"),
    [
        ([[50, 60], [70, 80]], [[False, False], [False, False]]),
        ([[50, 1], [70, 80]], [[True, True], [False, False]]),  # 1 alone would follow from the total
        ([[50, 0], [70, 80]], [[True, True], [False, False]]),
        ([[50, 6], [70, 5]], [[False, True], [False, True]]),  # 11 together
        ([[50, 4], [70, 5]], [[True, True], [False, True]]),
        ([[3, 0], [4, 1]], [[True, True], [True, True]]),
    ],
)
def test_where_the_total_is_known_withheld_cells_hold_enough_rows_together(
    counts: list[list[int]], hidden: list[list[bool]]
) -> None:
    found = torch.tensor(counts)
    assert withheld(found, 10, total_known=True).tolist() == hidden
    assert withheld(found, 10).tolist() == (found < 10).tolist()
    assert not withheld(found, 1, total_known=True).any()


def test_rows_of_hidden_cells_are_spread_over_them_and_their_sums_stay() -> None:
    confusion = torch.tensor([[[40, 3], [5, 1]], [[10, 2], [30, 0]]])
    tally = Tally(confusion, torch.tensor([[9.0, 2.0], [6.0, 1.0]], dtype=torch.float64))
    hidden = torch.tensor([[False, True], [True, True]])
    told = spread(tally, hidden)
    assert told.confusion.tolist() == [[[40, 3], [3, 3]], [[10, 10], [11, 11]]]
    assert told.loss.tolist() == [[9.0, 3.0], [3.0, 3.0]]
    assert spread(tally, torch.zeros_like(hidden)) is tally
