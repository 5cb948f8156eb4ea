"""Real federations survive random faults: a small part of `python -m tests.federate.faults`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.faults import hosts
from tests.federate.faults.campaign import Report, deck, table
from tests.federate.faults.faults import FAULTS

ROOT = Path(__file__).parents[3]


def test_every_kind_of_fault_comes_equally_often_and_in_the_order_of_the_seed() -> None:
    drawn = [[next(kinds) for _ in range(2 * len(FAULTS))] for kinds in (deck(Random(3)), deck(Random(3)))]
    assert drawn[0] == drawn[1]
    assert {kind: drawn[0].count(kind) for kind in FAULTS} == dict.fromkeys(FAULTS, 2)


def test_the_table_counts_faults_and_those_of_federations_that_ended_wrong() -> None:
    kind = next(iter(FAULTS))
    right, wrong = Report(0, 3, False, "ffalm"), Report(1, 3, True, "ffalm", problems=["late"])
    for report in (right, wrong):
        report.faults.append((kind, "north", 0.0, 2))
    assert table([right, wrong]).splitlines()[2:] == [f"| {kind} | 2 | 1 |", "| all | 2 | 1 |"]


@pytest.mark.slow
def test_federations_under_random_faults_come_to_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    why = hosts.obstacle()
    if why is not None:
        pytest.skip(f"Faults {why}")
    command = [sys.executable, "-m", "tests.federate.faults", "--faults", "8", "--each", "4", "--out", str(tmp_path)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False)
    reports = [json.loads(file.read_text()) for file in tmp_path.glob("federation-*.json")]
    assert [report["problems"] for report in reports] == [[]] * len(reports)
    assert done.returncode == 0 and sum(len(report["faults"]) for report in reports) == 8
