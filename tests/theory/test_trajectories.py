from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ffalm.theory import trajectories
from ffalm.theory.constants import PAPER
from ffalm.theory.trajectories import ROUNDS, Setting, duals, marked_rounds, run, run_all, share_ending_left
from ffalm.theory.two_clients import CLIENTS, MODELS


def by_hand(setting: Setting, rounds: int) -> float:
    """The same rounds in the plainest form."""
    model = setting.start
    for number in range(1, rounds + 1):
        ends = []
        for client in CLIENTS:
            local = model
            for _ in range(setting.local_steps):
                local -= setting.step(number) * float(client.slope(np.asarray(local)))
                local = min(max(local, -3.0), 3.0) if setting.clamp == "local" else local
            ends.append(local)
        model = min(max(sum(ends) / 2, -3.0), 3.0) if setting.clamp != "none" else sum(ends) / 2
    return model


@pytest.mark.parametrize("setting", [Setting(1), Setting(5, shift=1), Setting(2, clamp="server"), Setting(3, cap=0.01)])
def test_a_run_is_what_one_would_write_by_hand(setting: Setting) -> None:
    assert run(setting, 400).last == pytest.approx(by_hand(setting, 400), abs=1e-13)


def test_the_first_step_of_the_paper_throws_the_model_to_the_edge() -> None:
    path = run(Setting(5, shift=1), 60)
    assert path.rounds[:3] == [0, 1, 2]
    assert path.models[:3] == [2.0, -3.0, 3.0]


def test_the_fast_loop_begins_only_where_nothing_is_clamped_or_capped_any_more() -> None:
    for setting in (Setting(5), Setting(5, shift=1), Setting(1, cap=PAPER.largest_step)):
        first = setting.first_plain_round
        assert first is not None
        assert setting.scale / (first + setting.shift) <= min(setting.cap, 1 / 6.2)
    edges = np.array(MODELS)
    for client in CLIENTS:
        grid = np.linspace(*MODELS, 10_001)
        moved = grid - client.slope(grid) / 6.2
        assert (np.diff(moved) >= -1e-12).all()
        assert (np.abs(edges - client.slope(edges) / 6.2) < 3).all()


def test_clipped_runs_never_take_the_fast_loop() -> None:
    assert Setting(clip=1.0).first_plain_round is None


def test_a_run_that_overflows_ends_in_nan_and_says_so() -> None:
    path = run(Setting(40, clamp="none", scale=1e9), 20)
    assert math.isnan(path.last)
    assert path.farthest == math.inf


def test_without_a_clamp_five_local_steps_leave_the_box_by_thirty_orders_of_magnitude() -> None:
    assert run(Setting(5, clamp="none"), 100).farthest > 1e30
    assert run(Setting(5, clamp="local"), 100).farthest == 3.0


def test_after_a_million_rounds_the_model_is_where_the_paper_prints_it() -> None:
    published = run(Setting(local_steps=5, shift=1, clamp="local"))
    assert published.rounds[-1] == ROUNDS
    assert round(published.last, 9) == -0.633891054
    assert round(published.last, 7) == -0.6338911


def test_a_lawful_step_leads_to_the_better_saddle_in_a_million_rounds() -> None:
    assert round(run(Setting(1, cap=PAPER.largest_step)).last, 9) == 0.650928034


def test_the_dual_goes_to_zero_within_rounding() -> None:
    found = duals()
    assert found[0] == 2.0
    assert found[1] == pytest.approx(2.0 * (1 - 2 / 18))
    assert abs(found[ROUNDS]) < 1e-14


def test_every_early_round_and_the_last_are_recorded() -> None:
    marked = marked_rounds(1000)
    assert marked[:40] == list(range(1, 41))
    assert marked[-1] == 1000
    assert marked_rounds(3) == [1, 2, 3]


def test_runs_in_other_processes_are_the_same_runs() -> None:
    settings = [Setting(1), Setting(3, shift=1)]
    together = run_all(settings, 2000)
    assert together == {setting: run(setting, 2000) for setting in settings}


@pytest.mark.parametrize(("steps", "shift"), [(1, 0), (1, 1), (5, 0), (5, 1)])
def test_about_22_percent_of_all_starts_end_at_the_worse_saddle(steps: int, shift: int) -> None:
    assert share_ending_left(Setting(steps, shift), rounds=300) == pytest.approx(0.22, abs=0.006)


def test_the_share_counts_the_runs_that_run_would_make() -> None:
    setting = Setting(5, shift=1)
    starts = np.linspace(*MODELS, 9)
    ends = [run(replace(setting, start=float(start)), 300).last for start in starts]
    assert share_ending_left(setting, starts=9, rounds=300) == np.mean(np.array(ends) < -0.0557618)


def test_the_loop_for_speed_equals_the_careful_one() -> None:
    setting = Setting(4, shift=1)
    careful, _ = trajectories._careful(0.3, setting, 200, 1200)
    assert trajectories._plain(0.3, setting, 200, 1200) == pytest.approx(careful, abs=1e-13)
