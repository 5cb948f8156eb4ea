"""The search for settings that suit every data set looks at validation rows, and says plainly when it finds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reproduce.conftest import FakeRunner, outcome, study

from ffalm.outcome import Outcome, StudyOutcome
from ffalm.report.rendering import to_csv, to_markdown
from ffalm.reproduce.experiments import frontiers
from ffalm.reproduce.frontier import chosen, entries, findings, judge, last_rounds, on_frontier, table, tidy
from ffalm.reproduce.request import Request

MILD, STRONG = "FFALM, safe", "FFALM, released-code"


def run(label: str, seed: int, *rounds: tuple[float, float, float], diverged: str | None = None) -> Outcome:
    """A run with these (accuracy, DPD, EOD) on its validation part, and a test part that says the opposite."""
    history = [
        {"round": number, "accuracy": accuracy, "dpd": dpd, "eod": eod}
        for number, (accuracy, dpd, eod) in enumerate(rounds, start=1)
    ]
    return outcome(label, seed=seed, history=history, diverged=diverged, accuracy=0.0, dpd=1.0, eod=1.0)


def faces(**metrics: tuple[float, float, float]) -> StudyOutcome:
    names = {"fedavg": "FedAvg", "fpfl": "FPFL", "mild": MILD, "strong": STRONG}
    return study(*(run(names[name], 0, values) for name, values in metrics.items()))


def test_a_run_is_judged_by_its_last_five_rounds() -> None:
    rounds = [(0.0, 9.0, 9.0), *((0.1 * number, 0.2, 0.3) for number in range(5, 10))]
    assert last_rounds(run("FedAvg", 0, *rounds)) == pytest.approx({"accuracy": 0.7, "dpd": 0.2, "eod": 0.3})


def test_the_fairest_that_is_affordable_everywhere_is_chosen() -> None:
    one = faces(fedavg=(0.86, 0.14, 0.30), mild=(0.855, 0.10, 0.25), strong=(0.853, 0.07, 0.20))
    other = faces(fedavg=(0.71, 0.43, 0.33), mild=(0.702, 0.34, 0.27), strong=(0.61, 0.16, 0.10))
    assert chosen(judge({"utkface": one})) == STRONG
    assert chosen(judge({"utkface": one, "celeba": other})) == MILD


def test_where_fedavg_predicts_everybody_alike_no_gap_at_all_is_best() -> None:
    one = faces(fedavg=(0.7, 0.0, 0.0), strong=(0.7, 0.1, 0.0), mild=(0.7, 0.0, 0.0))
    assert chosen(judge({"utkface": one})) == MILD


def test_none_is_chosen_where_all_cost_too_much() -> None:
    judged = judge({"celeba": faces(fedavg=(0.71, 0.43, 0.33), mild=(0.69, 0.3, 0.3), strong=(0.61, 0.16, 0.10))})
    assert chosen(judged) is None
    assert "there is only the frontier to choose from" in findings(judged)[-1]


def test_a_collapsed_or_diverged_seed_rules_a_candidate_out() -> None:
    base = [run("FedAvg", seed, (0.8, 0.2, 0.2)) for seed in (0, 1)]
    collapsed = [run(STRONG, 0, (0.95, 0.1, 0.1)), run(STRONG, 1, (0.69, 0.1, 0.1))]
    diverged = [run(MILD, 0, (0.8, 0.1, 0.1)), run(MILD, 1, (0.8, 0.1, 0.1), diverged="lost")]
    judged = judge({"utkface": study(*base, *collapsed, *diverged)})
    assert [one.stable for one in judged] == [True, False, False]
    assert chosen(judged) is None


def test_the_frontier_holds_what_nothing_stable_beats() -> None:
    judged = judge(
        {
            "utkface": faces(
                fedavg=(0.9, 0.2, 0.2), fpfl=(0.85, 0.15, 0.2), mild=(0.86, 0.1, 0.1), strong=(0.82, 0.05, 0.1)
            )
        }
    )
    assert [on_frontier(one, judged) for one in judged] == [True, False, True, True]


def test_it_says_whom_the_chosen_one_beats() -> None:
    judged = judge({"utkface": faces(fedavg=(0.86, 0.14, 0.30), fpfl=(0.87, 0.08, 0.28), mild=(0.86, 0.10, 0.25))})
    assert findings(judged)[-1] == "On UTKFace it is fairer in both than FedAvg."


def test_presets_share_their_runs_with_the_tables() -> None:
    keys = {entry.key: entry for entry in entries()}
    presets = Request(scale="smoke", chosen={"schedule": "paper,released-code,safe"}).entries(["ffalm"])
    assert {entry.key for entry in presets} <= set(keys)
    config = Request(scale="smoke").config("faces", [0.3], presets)
    mine = Request(scale="smoke").config("faces", [0.3], [keys[entry.key] for entry in presets])
    assert [one.algorithm for one in config.entries] == [one.algorithm for one in mine.entries]


def test_it_comes_as_a_table_for_readers_and_one_for_machines(
    data_root: Path, runner: FakeRunner, tmp_path: Path
) -> None:
    product = frontiers(Request(data_root=str(data_root), seeds=(0, 1)), tmp_path, runner)
    written = {path.suffix for path in (tmp_path / "frontier").iterdir()}
    assert written == {".md", ".tex", ".csv", ".svg"}
    assert "![The frontier](frontier.svg)" in (tmp_path / "frontier" / "frontier.md").read_text()
    assert len(product.values) == 3 + len(entries())
    assert "released-code, penalty 10" in (tmp_path / "frontier" / "frontier.md").read_text()
    assert to_csv(tidy([])).startswith("data,algorithm,accuracy")


def test_a_run_that_diverged_is_told_in_words_and_leaves_its_cells_empty() -> None:
    lost = outcome("FFALM, safe", "ffalm", seed=1, history=[{"round": 1, "accuracy": None}], diverged="lost")
    whole = [{"round": 1, "accuracy": 0.8, "dpd": 0.1, "eod": 0.2}]
    runs = [outcome(label, seed=seed, history=whole) for label in ("FedAvg", "FFALM, safe") for seed in (0, 1)]
    judged = judge({"utkface": study(*runs[:3], lost)})
    text = to_markdown(table(judged, "title"))
    assert "| FFALM, safe | undefined | undefined | undefined | undefined | no: 1 diverged | 2 |" in text
    assert to_csv(tidy(judged)).splitlines()[2] == 'utkface,"FFALM, safe",,,,,False,False,2,1'
