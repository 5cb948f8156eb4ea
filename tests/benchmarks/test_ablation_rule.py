"""The rule of the ablation: what passes, what is chosen, and what is said about plainer methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.ablation_rule import (
    CURRENT,
    PLAINER,
    VARIANTS,
    Scored,
    Verdict,
    chosen,
    finalists,
    findings,
    from_csv,
    table,
    tidy,
    verdicts,
)

from ffalm.algorithms import FFALM
from ffalm.config import entry_of
from ffalm.report.rendering import to_csv, to_markdown

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "ablation.csv"
ONE, OTHER = ("adult", "plain", 0.3), ("adult", "balanced", 5.0)
POOLED, CAPPED = "ffalm-safe-pooled-gap", "ffalm-paper-capped-steps"


def run(label: str, accuracy: float, dpd: float, eod: float, condition: tuple[str, str, float] = ONE, seed: int = 0,
        degenerate: str = "") -> Scored:  # fmt: skip
    """A run with these held-out metrics, and test metrics that say the opposite."""
    told = {"accuracy": accuracy, "dpd": dpd, "eod": eod}
    return Scored(condition, label, seed, told, {"accuracy": 1 - accuracy, "dpd": 1.0, "eod": 1.0}, degenerate, 0.5)


BASE = [run("FedAvg", 0.85, 0.2, 0.1), run("FedAvg", 0.80, 0.3, 0.3, OTHER)]


def judged(*runs: Scored) -> dict[str, Verdict]:
    return {one.label: one for one in verdicts([*BASE, *runs])}


def test_gaps_are_shares_of_fedavgs_averaged_over_conditions() -> None:
    """(0.10 + 0.05) / (0.2 + 0.1) = 0.5 and (0.3 + 0.15) / 0.6 = 0.75."""
    found = judged(run(POOLED, 0.845, 0.1, 0.05), run(POOLED, 0.795, 0.3, 0.15, OTHER))[POOLED]
    assert found.score == pytest.approx(0.625)
    assert found.worst_loss == pytest.approx(0.005)
    assert found.passes
    assert judged()["FedAvg"] == Verdict("FedAvg", 0.0, 0, 1.0)


def test_more_than_a_point_lost_in_one_condition_is_too_much() -> None:
    assert not judged(run(POOLED, 0.86, 0.0, 0.0), run(POOLED, 0.785, 0.0, 0.0, OTHER))[POOLED].passes


def test_one_degenerate_run_rules_a_variant_out_unless_fedavgs_is_too() -> None:
    runs = [run(POOLED, 0.85, 0.1, 0.1, degenerate="one label")]
    assert judged(*runs)[POOLED].degenerate == 1
    assert not judged(*runs)[POOLED].passes
    alike = [replace(one, degenerate="below the majority share") for one in BASE]
    assert verdicts([*alike, *runs])[1].passes


def test_the_fairest_variant_that_passes_is_chosen_and_never_a_plainer_method() -> None:
    passing = [Verdict("FedAvg", 0.0, 0, 1.0), Verdict("lagrangian-eo", 0.001, 0, 0.4), Verdict(CURRENT, 0.02, 0, 0.3),
               Verdict(POOLED, 0.01, 0, 0.7), Verdict(CAPPED, 0.0, 0, 0.8)]  # fmt: skip
    assert chosen(passing) == POOLED
    first, second = findings(passing)
    assert POOLED in first
    assert second == "The plainer lagrangian-eo passes too, with smaller gaps (0.40 of FedAvg's against 0.70)."


def test_nothing_is_chosen_that_is_no_fairer_than_fedavg() -> None:
    assert chosen([Verdict("FedAvg", 0.0, 0, 1.0), Verdict(POOLED, 0.0, 0, 1.01)]) is None
    assert "stays as it is" in findings([Verdict(POOLED, 0.5, 0, 0.1)])[0]


def test_finalists_are_the_plainer_methods_the_current_one_and_the_best_that_pass() -> None:
    told = [Verdict(name, 0.0, 0, 0.9 - 0.01 * place) for place, name in enumerate(VARIANTS)]
    told[-1] = replace(told[-1], degenerate=1)
    best = [one.label for one in reversed(told[:-1])]
    assert finalists(told, most=2) == list(dict.fromkeys([*PLAINER, CURRENT, *best[:2]]))


def test_tables_show_percent_and_the_csv_full_precision() -> None:
    runs = [*BASE, run(POOLED, 0.845, 0.1, 0.05)]
    shown = to_markdown(table(runs, verdicts(runs)))
    assert "| 84.5 / 10.0 / 5.0 |" in shown
    assert to_csv(tidy(runs)).splitlines()[-1].startswith(f"adult,plain,0.3,{POOLED},0,,0.5,0.845,0.1,0.05,")


def test_every_variant_is_ffalm_with_settings_of_its_own() -> None:
    algorithms = [entry_of(name, settings).algorithm for name, settings in VARIANTS.items()]
    assert all(isinstance(one, FFALM) for one in algorithms)
    assert len(set(algorithms)) == len(algorithms)


def test_what_is_recommended_is_what_the_rule_chooses_from_the_published_runs() -> None:
    runs = from_csv(PUBLISHED.read_text())
    label = chosen(verdicts(runs))
    assert label is not None
    settings = {name: value for name, value in VARIANTS[label].items() if name not in ("name", "preset")}
    assert FFALM.preset(VARIANTS[label]["preset"], **settings) == FFALM.recommended()


def test_the_tables_of_the_published_page_are_those_of_the_published_runs() -> None:
    runs = from_csv(PUBLISHED.read_text())
    page = PUBLISHED.with_suffix(".md").read_text()
    for part in ("validation", "test"):
        lines = to_markdown(table(runs, verdicts(runs), part)).splitlines()
        assert "\n".join(line for line in lines if line.startswith("|")) in page
