"""A lying site in a real federation of ten, by the functions that make the table of docs/security.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from benchmarks.attacked_federation import RealFederation, Truth

from ffalm.federate.deploy.operations import processes_of

pytestmark = pytest.mark.slow


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[RealFederation]:
    made = RealFederation(tmp_path / "attacked", rows=3000, rounds=4, epochs=4, seed=0)
    try:
        yield made
    finally:
        made.close()
        assert not any(process.family() for process in processes_of(made.folder).values())


def test_a_claim_of_a_million_times_the_rows_ruins_a_real_federation_without_rules_alone(
    federation: RealFederation,
) -> None:
    attack = "rows x 1e6, update x -1"
    accuracy = {}
    for name, liars, defence in [("none", 0, "none"), (attack, 1, "none"), (attack, 1, "trimmed")]:
        run = federation.run(name, liars, defence)
        truth = Truth(federation, federation.plan(name, liars, defence), run)
        real = truth.of_run(name, run)
        assert real == pytest.approx(truth.of_simulation(name, liars, defence), abs=0.3)  # a row of 600 on an edge
        accuracy[liars, defence] = real[0]
    assert accuracy[1, "none"] < accuracy[0, "none"] - 20
    assert accuracy[1, "trimmed"] > accuracy[0, "none"] - 2
