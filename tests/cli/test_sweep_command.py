"""`ffalm sweep`: fronts on the terminal and in files, and the point that a bound asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from ffalm.studies.results import Study


def test_a_sweep_shows_fronts_resumes_and_answers_a_bound(
    cli: Cli, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "write_report", lambda study: {})  # other tests draw
    out = tmp_path / "sweep"
    asked = ["--algorithms", "fedavg,lagrangian", "--over", "tolerance=0,0.1", "--seeds", "2", "--out", out]
    code, shown, err = cli("sweep", *flags, *asked, "--at", "dpd <= 100%")
    assert code == 0, err
    for said in ("Hypervolume", "tolerance 0.1", "as it is", "Most accurate with dpd <= 1 on held-out rows"):
        assert said in shown, said
    assert {path.name for path in out.glob("fronts.*")} == {f"fronts.{end}" for end in ("csv", "md", "svg")}
    code, shown, _ = cli("sweep", "--out", out, "--resume", "--quiet", "--json", "--metric", "eod", "--at", "eod <= 1")
    told = json.loads(shown)
    assert code == 0 and told["metric"] == "eod" and len(told["points"]) == 6
    assert set(told["hypervolume"]) == {"FedAvg", "Lagrangian"} and told["at"]["chosen_on"] == "held_out"


def test_a_bound_that_no_point_meets_is_said_beside_the_fronts(
    cli: Cli, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Study, "write_report", lambda study: {})
    out = tmp_path / "sweep"
    asked = ["--algorithms", "lagrangian", "--over", "tolerance=0.1,0.2", "--seeds", "1", "--out", out]
    code, shown, err = cli("sweep", *flags, *asked, "--at", "impact_ratio >= 1")
    assert code == 0, err
    assert "Hypervolume" in shown and "No point of the sweep meets impact_ratio >= 1; the nearest is" in shown
    code, shown, _ = cli("sweep", "--out", out, "--resume", "--quiet", "--json", "--at", "impact_ratio >= 1")
    told = json.loads(shown)
    assert code == 0 and len(told["points"]) == 2
    assert told["at"]["label"] is None and "No point of the sweep meets" in told["at"]["why"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--over", "tolerance"], "--over takes a setting and its values"),
        (["--over", "tolerence=0"], "did you mean 'tolerance'"),
        (["--over", "tolerance=-1"], "tolerance"),
        (["--over", "tolerance=0", "--metric", "loss"], "gap to draw accuracy against"),
        (["--over", "tolerance=0", "--at", "dpd"], "is not understood"),
        (["--over", "tolerance=0", "--alpha", "1,5"], "one skew"),
        ([], "needs a setting and its values"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(cli: Cli, arguments: list[str], message: str) -> None:
    code, _, err = cli("sweep", *arguments)
    assert code == 2 and message in err and len(err.splitlines()) == 1


def test_a_sweep_leaves_out_one_site_at_most(cli: Cli, loans: Path, tmp_path: Path) -> None:
    flags = ["--data", loans, "--label", "paid", "--group", "sex", "--favourable", "yes", "--owner", "branch"]
    asked = ["--over", "tolerance=0,0.1", "--leave-out", "each", "--out", tmp_path / "sweep"]
    code, _, told = cli("sweep", *flags, *asked)
    assert code == 2 and "A sweep leaves out one site" in told
