"""Whole numbers for sums: nothing overflows, and rounding stays within half a step a site."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ffalm.errors import UserError
from ffalm.federate.secure.fixed_point import OutOfRange, Record, VectorLayout, Words, added


def summed(plan: VectorLayout, words: list[Words]) -> Words:
    total = plan.empty()
    for one in words:
        total = added(total, one)
    return total


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("sites", [1, 3, 7, 1000])
@pytest.mark.parametrize("bound", [1e-3, 1.0, 3.7, 16.0, 1e6])
def test_the_sum_of_extremes_of_all_sites_does_not_overflow(bits: int, sites: int, bound: float) -> None:
    plan = VectorLayout([Record("ends", (2,), bound, "range", bits)], sites)
    ends = np.array([bound, -bound])
    total = plan.values(summed(plan, [plan.words({"ends": ends})] * sites))["ends"]
    step = plan.step(plan.records[0])
    assert np.abs(total - sites * ends).max() <= sites * step / 2 + 1e-15 * sites * bound
    assert math.log2(step).is_integer() and sites * bound < 2 ** (bits - 1) * step <= 4 * sites * bound + 4 * step


def test_one_site_more_than_was_planned_for_could_overflow_so_the_plan_must_name_all() -> None:
    plan = VectorLayout([Record("ends", (1,), 1.0, "range", 32)], 2)
    words = plan.words({"ends": np.ones(1)})
    assert plan.values(summed(plan, [words] * 2))["ends"] == 2.0
    assert plan.values(summed(plan, [words] * 4))["ends"] < 0


@pytest.mark.parametrize("seed", range(5))
def test_rounding_moves_a_sum_by_half_a_step_a_site_at_most(seed: int) -> None:
    plan = VectorLayout([Record("a", (3, 4), 16.0, "range", 32), Record("b", (), 1e6, "range")], 5)
    draw = np.random.default_rng(seed)
    own = [{"a": draw.uniform(-16, 16, (3, 4)), "b": draw.uniform(-1e6, 1e6, ())} for _ in range(5)]
    total = plan.values(summed(plan, [plan.words(one) for one in own]))
    for record in plan.records:
        exact = sum(one[record.name] for one in own)
        assert total[record.name].shape == record.shape
        assert np.abs(total[record.name] - exact).max() <= 5 * plan.step(record) / 2 + 1e-15 * 5 * record.bound


def test_counts_are_exact() -> None:
    plan = VectorLayout([Record("counts", (2,), 2.0**40, "range", whole=True)], 10)
    words = [plan.words({"counts": np.array([2.0**40 - place, -place])}) for place in range(10)]
    assert plan.values(summed(plan, words))["counts"].tolist() == [10 * 2.0**40 - 45, -45]


@pytest.mark.parametrize("value", [16.000001, -17.0, 1e300])
def test_a_value_outside_its_range_is_refused_by_name(value: float) -> None:
    plan = VectorLayout([Record("model's '0.bias'", (3,), 16.0, "model_range", 32)], 3)
    with pytest.raises(OutOfRange, match=r"its model's '0\.bias' is beyond the agreed model_range of 16: it reaches"):
        plan.words({"model's '0.bias'": np.array([0.0, value, 1.0])})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(value: float) -> None:
    plan = VectorLayout([Record("state's 'dual'", (), 1e6, "state_range")], 3)
    with pytest.raises(OutOfRange, match="its state's 'dual' is no longer finite"):
        plan.words({"state's 'dual'": np.array(value)})


def test_a_range_holds_for_a_value_before_it_is_weighted() -> None:
    plan = VectorLayout([Record("a", (1,), 1.0, "range", 32, weighted=True), Record("b", (1,), 9.0, "range")], 2)
    found = plan.values(plan.words({"a": np.ones(1), "b": np.full(1, 8.0)}, weight=0.25))
    assert found["a"] == 0.25 and found["b"] == 8.0
    with pytest.raises(OutOfRange):
        plan.words({"a": np.full(1, 1.5), "b": np.ones(1)}, weight=0.25)
    with pytest.raises(UserError, match="at most 1"):
        plan.words({"a": np.ones(1), "b": np.ones(1)}, weight=1.5)


def test_a_bound_that_the_words_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError, match="32 bits cannot hold counts of 1000 sites"):
        VectorLayout([], 1000).step(Record("counts", (1,), 2.0**30, "range", 32, whole=True))


@pytest.mark.parametrize(("sites", "bits"), [(1, 32), (3, 32), (7, 64)])
def test_the_largest_count_that_fits_is_accepted_and_the_next_refused(sites: int, bits: int) -> None:
    most = float((2 ** (bits - 1) - 1) // sites) if bits == 32 else 2.0**60
    largest = Record("counts", (1,), most, "range", bits, whole=True)
    assert VectorLayout([largest], sites).step(largest) == 1.0
    beyond = Record("counts", (1,), most + 1 if bits == 32 else 2.0**61, "range", bits, whole=True)
    with pytest.raises(UserError, match=f"{bits} bits cannot hold counts of {sites} sites"):
        VectorLayout([beyond], sites).step(beyond)


def test_the_order_of_records_does_not_matter_and_layouts_have_names() -> None:
    first, second = Record("a", (), 1.0, "range", 32), Record("b", (), 1.0, "range", 32)
    there, back = VectorLayout([first, second], 2), VectorLayout([second, first], 2)
    words = there.words({"a": np.array(0.25), "b": np.array(-0.5)})
    assert back.values(words) == {"a": 0.25, "b": -0.5} and there.key == back.key
    others = [
        VectorLayout([first], 2),
        VectorLayout([first, second], 3),
        VectorLayout([first, Record("b", (), 2.0, "range", 32)], 2),
    ]
    assert len({layout.key for layout in [there, *others]}) == 4


def test_words_of_another_form_do_not_fit() -> None:
    plan = VectorLayout([Record("a", (3,), 1.0, "range", 32)], 2)
    words = plan.words({"a": np.zeros(3)})
    assert plan.fits(words) and plan.fits(plan.empty())
    assert not plan.fits({"32": words["32"]}) and not plan.fits({**words, "32": words["32"][:2]})
    assert not plan.fits({**words, "32": words["32"].astype(np.uint64)})
