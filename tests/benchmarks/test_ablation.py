"""Which runs of the ablation are computed next, and how they join those that exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.ablation import METHODS, Part, merged_runs, missing_parts
from benchmarks.ablation_rule import Scored, from_csv

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "ablation.csv"


def run(label: str, seed: int, partition: str = "plain", alpha: float = 0.3, data: str = "utkface") -> Scored:
    told = {"accuracy": 0.8, "dpd": 0.1, "eod": 0.1}
    return Scored((data, partition, alpha), label, seed, told, told, "", 0.0)


def test_only_what_is_missing_is_computed_and_the_largest_studies_of_a_partition_come_first() -> None:
    known = [run("FedAvg", 0), run("FPFL", 0), run("FedAvg", 1), run("FedAvg", 0, "balanced")]
    assert list(missing_parts("utkface", ["FedAvg", "FPFL"], range(5), known, 2)) == [
        Part("utkface", "plain", (2, 3), ("FedAvg", "FPFL")),
        Part("utkface", "plain", (4,), ("FedAvg", "FPFL")),
        Part("utkface", "plain", (1,), ("FPFL",)),
        Part("utkface", "balanced", (1, 2), ("FedAvg", "FPFL")),
        Part("utkface", "balanced", (3, 4), ("FedAvg", "FPFL")),
        Part("utkface", "balanced", (0,), ("FPFL",)),
    ]


def test_a_method_is_missing_until_it_has_every_skew() -> None:
    half = [run("FedAvg", 0, partition, 0.3, "adult") for partition in ("plain", "balanced")]
    assert [part.seeds for part in missing_parts("adult", ["FedAvg"], [0], half, 1)] == [(0,), (0,)]
    whole = [*half, *(replace(one, condition=(*one.condition[:2], 5.0)) for one in half)]
    assert list(missing_parts("adult", ["FedAvg"], [0], whole, 1)) == []


def test_a_run_that_was_made_again_takes_the_place_of_the_one_that_exists() -> None:
    again = replace(run("FPFL", 3), largest_dual=0.5)
    known = [run("FPFL", 3), run("FPFL", 1), run("FedAvg", 3)]
    assert merged_runs(known, [again]) == [run("FedAvg", 3), run("FPFL", 1), again]


def test_all_methods_have_ten_seeds_on_adult() -> None:
    assert list(missing_parts("adult", list(METHODS), range(10), from_csv(PUBLISHED.read_text()), 10)) == []
