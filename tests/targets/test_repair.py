"""Repairs: what is predicted is what was fitted; stored thresholds come back; unknown groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram, tally
from ffalm.fairness.histograms import AS_TRAINED, BINS
from ffalm.targets import Target
from ffalm.targets.repair import Repair, draws_of_ids, draws_of_rows, fit
from ffalm.targets.target import KINDS, Kind


def scored_rows(rows: int = 20_000) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that favour group 1 of three."""
    draws = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (rows,), generator=draws)
    group = torch.randint(0, 3, (rows,), generator=draws)
    return 2 * torch.randn(rows, generator=draws) + 3 * y - 1.5 + (group == 1), y, group


SCORES, Y, GROUP = scored_rows()
HISTOGRAM = ScoreHistogram.of(SCORES, torch.zeros_like(Y), Y, GROUP, (2, 3), 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["dpd <= 0.05", "eod <= 0.05"])
def test_predictions_are_what_the_histogram_promised(kind: Kind, target: str) -> None:
    repair = fit(HISTOGRAM, Target.parse(target), kind)
    assert repair is not None
    draws = draws_of_rows(bytes([row % 256, row // 256 % 256]) for row in range(len(Y)))
    chosen = repair.favourable(SCORES, GROUP, draws)
    promised, found = repair.tally(HISTOGRAM), tally(Y, chosen.long(), GROUP)
    within = 0.02 if kind == "randomised" else 0.0
    assert found.accuracy() == pytest.approx(promised.accuracy(), abs=within + 1e-12)
    assert found.dpd() == pytest.approx(promised.dpd(), abs=within + 1e-12)
    if kind in ("groups", "randomised"):
        assert Target.parse(target).excess(promised.metrics()) < 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_thresholds_come_back_from_plain_values(kind: Kind) -> None:
    repair = fit(HISTOGRAM, Target.parse("equalized_odds <= 0.02"), kind)
    assert repair is not None
    assert Repair.from_plain(repair.to_plain(["a", "b", "c"])) == repair


@pytest.mark.parametrize("kind", ["accurate", "groups"])
def test_thresholds_for_a_rare_label_predict_it_where_that_is_a_result(kind: Kind) -> None:
    """5 % are favourable; the most accurate thresholds select 0.7 % of the rows."""
    draws = torch.Generator().manual_seed(0)
    group = torch.randint(0, 2, (20_000,), generator=draws)
    y = (torch.rand(20_000, generator=draws) < 0.05).long()
    score = torch.randn(20_000, generator=draws) + 1.6 * y - 3.0 + 0.4 * group
    rare = ScoreHistogram.of(score, torch.zeros_like(y), y, group, (2, 2), 1)
    repair = fit(rare, Target.parse("eod <= 0.1"), kind)
    assert repair is not None
    found = repair.tally(rare)
    assert found.accuracy() > 1 - float(y.float().mean())
    assert 0.01 <= float(found.confusion[1].sum()) / 20_000 < 0.05
    noise = ScoreHistogram.of(torch.randn(20_000, generator=draws), 0 * y, y, group, (2, 2), 1)
    nothing = fit(noise, Target.parse("eod <= 0.1"), kind)  # both labels would be worse than the most frequent one
    assert nothing is not None
    assert float(nothing.tally(noise).confusion[1].sum()) < 0.01 * 20_000


def test_thresholds_that_are_no_edges_are_refused() -> None:
    plain = Repair.fixed("groups", [0, BINS], AS_TRAINED).to_plain(["a", "b"])
    assert plain["groups"]["b"][0]["threshold"] == "inf"
    plain["single"] = 0.123
    with pytest.raises(UserError, match="not an edge"):
        Repair.from_plain(plain)
    with pytest.raises(UserError, match="cannot be read"):
        Repair.from_plain({"kind": "groups"})


def test_rows_without_a_known_group_get_the_single_threshold() -> None:
    repair = Repair.fixed("groups", [0, BINS, 0], AS_TRAINED)
    scores = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    assert repair.favourable(scores, None).tolist() == [False, True, False, True]
    assert repair.favourable(scores, torch.tensor([0, 1, -1, 7])).tolist() == [True, False, False, True]


def test_the_draw_of_an_id_depends_on_it_alone() -> None:
    first, second = draws_of_ids([b"a", b"b", b"a"]), draws_of_ids([b"b"])
    assert first[0] == first[2] != first[1] == second[0]
    assert len(draws_of_ids([])) == 0


def test_rows_of_the_same_content_are_drawn_one_by_one() -> None:
    mixed, alone = draws_of_rows([b"a", b"b", b"a", b"b", b"a"]), draws_of_rows([b"a", b"a", b"a"])
    assert mixed[[0, 2, 4]].tolist() == alone.tolist() and len(set(mixed.tolist())) == 5
    assert mixed[0] == draws_of_ids([b"a"])[0]  # a row alone is drawn by its content
    for contents in ([b"same"] * 4000, [str(row).encode() for row in range(4000)]):
        draws = draws_of_rows(contents)
        assert draws.mean() == pytest.approx(0.5, abs=0.03)
        assert draws.sort().values.numpy() == pytest.approx([row / 4000 for row in range(4000)], abs=0.04)


def test_randomised_thresholds_need_a_draw() -> None:
    repair = Repair("randomised", (((0, 0.5), (BINS, 0.5)), ((0, 1.0),)), AS_TRAINED)
    with pytest.raises(UserError, match="one draw per row"):
        repair.favourable(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    chosen = repair.favourable(torch.zeros(2), torch.tensor([0, 0]), torch.tensor([0.4, 0.6]))
    assert chosen.tolist() == [True, False]


def test_smoothing_never_averages_gaps() -> None:
    target = Target.parse("dpd <= 0.01")
    for smooth in (False, True):
        repair = fit(HISTOGRAM, target, "groups", smooth=smooth)
        assert repair is not None
        assert target.meets(repair.tally(HISTOGRAM).metrics())
