"""`ffalm.sweep`: the points of an algorithm's front as one study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ffalm
from ffalm.errors import UserError
from ffalm.studies.sweeps import sections_of


def arrays(rows: int, seed: int) -> tuple[Any, Any, Any]:
    draws = np.random.default_rng(seed)
    y, group = np.tile([0, 1], rows // 2), np.tile([0, 0, 1, 1], rows // 4)
    return draws.normal(size=(rows, 3)) + y[:, None], y, group


def test_a_sweep_has_a_point_for_each_value_with_the_numbers_of_a_study(tmp_path: Any) -> None:
    owned = ffalm.Federation.from_arrays([arrays(40, 0), arrays(24, 1)], arrays(20, 8), arrays(40, 9))
    same: dict[str, Any] = {"model": "linear", "rounds": 2, "device": "cpu", "seeds": 2}
    over = {"tolerance": [0.0, 0.1], "lagrangian.penalty": [0.5, 2]}
    swept = ffalm.sweep(owned, ["fedavg", "lagrangian"], over, out=tmp_path / "sweep", **same)
    fedavg, lagrangian = swept.fronts
    assert [one.settings for one in lagrangian.points] == [
        {"tolerance": tolerance, "penalty": penalty} for tolerance in (0.0, 0.1) for penalty in (0.5, 2.0)
    ]
    assert [one.label for one in fedavg.points] == ["FedAvg"] and fedavg.points[0].settings == {}
    alone = ffalm.compare(owned, ffalm.Lagrangian(constraint="dp", tolerance=0.1, penalty=0.5), **same)
    assert lagrangian.points[2].mean("accuracy") == pytest.approx(
        np.mean([run.test["accuracy"] for run in alone.results])
    )
    assert swept.best("dpd <= 1").runs[0].seed == 0
    assert ffalm.Sweep.load(tmp_path / "sweep", "eod").fronts[1].metric == "eod"


def test_keys_say_the_settings_and_algorithms_pursue_the_gap_that_is_drawn() -> None:
    sections = sections_of(
        ["ffalm", "lagrangian", "fairfed"], {"ffalm.penalty": [1, 2.5], "tolerance": [0.05]}, "eod", {}
    )
    assert list(sections) == ["ffalm-penalty-1", "ffalm-penalty-2.5", "lagrangian-tolerance-0.05", "fairfed"]
    assert sections["ffalm-penalty-1"] == {"name": "ffalm", "penalty": 1}
    assert sections["lagrangian-tolerance-0.05"]["constraint"] == "eo" and sections["fairfed"]["metric"] == "eod"
    assert len(sections_of(["lagrangian"], {"tolerance": [0.1234567, 0.1234568]}, "dpd", {})) == 2
    rivals = sections_of(["fedgft", "reductions", "fedfb"], {"fedfb.step": [0.1]}, "eod", {})
    aims = [(one["name"], one.get("constraint") or one.get("metric")) for one in rivals.values()]
    assert aims == [("fedgft", "eo"), ("reductions", "eo"), ("fedfb", "eo")]
    given = sections_of(["lagrangian"], {"tolerance": [0]}, "eod", {"lagrangian": {"constraint": "dp"}})
    assert given["lagrangian-tolerance-0"]["constraint"] == "dp"


@pytest.mark.parametrize(
    ("names", "over", "metric", "message"),
    [
        (["lagrangian"], {}, "dpd", "needs a setting and its values"),
        (["lagrangian"], {"tolerence": [0]}, "dpd", "did you mean 'tolerance'"),
        (["lagrangian"], {"tolerance": []}, "dpd", "needs a list of values"),
        (["lagrangian"], {"ffalm.penalty": [1]}, "dpd", "not among"),
        (["lagrangian"], {"tolerance": [0]}, "accuracy", "gap to draw accuracy against"),
        (["lagrangian"], {"constraint": ["a/b"]}, "dpd", "leave out '/'"),
        (["nobody"], {"tolerance": [0]}, "dpd", "nobody"),
    ],
)
def test_a_mistake_gets_one_sentence(names: list[str], over: dict[str, Any], metric: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sections_of(names, over, metric, {})


@pytest.mark.parametrize(
    "strange", [{"algorithms": 3}, {"over": "tolerance"}, {"over": {"tolerance": 3}}, {"over": {3: [1]}},
                {"settings": [1]}, {"settings": {"lagrangian": 3}}, {"metric": ["dpd"]}],
)  # fmt: skip
def test_arguments_of_another_type_are_refused(strange: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ffalm.sweep("census", **{"over": {"tolerance": [0.1]}, **strange})
