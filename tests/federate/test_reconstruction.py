"""A reconstruction attack: the coordinator keeps all that a site sends and tries to solve for one person's row.

One site has a single person in a (label, group) cell. The loss of that cell under a linear model is one linear equation
in the person's features, -log(exp(loss) - 1) = (w_label - w_other) . x + b_label - b_other. A few rounds give enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from tests.federate.makers import World, config, people, site_folder
from tests.federate.test_privacy_of_rows import on_the_wire
from torch import Tensor

from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig, SiteConfig

LABEL, GROUP = 1, 1  # yes, male: the cell of one person
AGE, HOURS, JOB = 37.0, 41.5, "nurse"
ROUNDS = 8


class Exchange(NamedTuple):
    kind: Kind
    asked: Message
    given: Message


class Curious(World):
    """A coordinator that keeps every question to the site north and every answer."""

    def __init__(self, folders: dict[str, Path]) -> None:
        super().__init__(folders)
        self.kept: list[Exchange] = []

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        given = super()._answer(kind, name, message)
        if name == "north" and isinstance(given, Message):
            self.kept.append(Exchange(kind, message, given))
        return given

    @property
    def training(self) -> list[Exchange]:
        return [one for one in self.kept if one.kind == "train"]


def north(alone_in_group: bool) -> pd.DataFrame:
    """People of whom one is the only man with the label yes, or the only man."""
    frame = people(160, 0)
    frame = frame[(frame.sex == "female") | ((frame.loan == "no") & (not alone_in_group))]
    person = pd.DataFrame({"age": [int(AGE)], "hours": [HOURS], "job": [JOB], "sex": ["male"], "loan": ["yes"]})
    kept = pd.concat([frame, person], ignore_index=True)
    parts = np.where(np.arange(len(kept)) % 4 == 0, "test", np.where(np.arange(len(kept)) % 4 == 1, "val", "train"))
    parts[-1] = "train"
    return kept.assign(part=parts)


def attacked(
    root: Path, alone_in_group: bool = False, own_floor: int = 0, **sections: Any
) -> tuple[Curious, FederationConfig]:
    """A federation that has trained, as its curious coordinator saw it."""
    folders = {"north": site_folder(root / "sites", "north", north(alone_in_group))}
    own = {"name": "north", "device": "cpu", "min_group": own_floor, "split": {"column": "part"}}
    SiteConfig.parse({**own, "data": {"file": "rows.csv"}}).write(folders["north"] / "site.toml")
    for seed, name in enumerate(("south", "west"), 1):
        folders[name] = site_folder(root / "sites", name, people(90, seed))
    training = {"rounds": ROUNDS, "batch_size": "none", "lr": 0.5, "clip": "none"}
    plan = config(model={"name": "linear"}, training=training, **{"rules": {"min_group": 10}, **sections})
    sites = Curious(folders)
    coordinate(plan, root / "run", sites, pause=0.001)
    return sites, plan


def cell_losses(sites: Curious, plan: FederationConfig) -> Iterator[tuple[dict[str, Tensor], float]]:
    """Models and the person's loss under each, by every way that the messages may offer."""
    for _, asked, given in sites.training:
        received = plan.algorithm.measure.value == "received"
        model = asked.tensors["model"] if received else given.tensors["model"]
        tally, mean = given.tensors.get("tally"), given.facts.get("loss")
        count = None if tally is None else tally["confusion"].sum(0)
        if tally is not None and count is not None and int(count[LABEL, GROUP]) == 1:
            yield model, float(tally["loss"][LABEL, GROUP])
        elif tally is not None and count is not None and received and mean is not None:
            rows = next(one for one in sites.kept if "counts" in one.given.tensors).given.tensors["counts"]["rows"]
            if int(rows) - int(count.sum()) == 1:  # a full batch: the mean loss is of the received model
                yield asked.tensors["model"], float(mean) * int(rows) - float(tally["loss"].sum())
        elif mean is not None and "state" in given.tensors and plan.algorithm.measure.value in ("last batch", "epoch"):
            step = given.tensors["state"]["dual"] - asked.tensors["state"]["dual"]
            gap = float(step) / plan.algorithm.dual_lr_at(int(asked.facts["round"]) + 1)  # type: ignore[attr-defined]
            number = int(given.facts["rows"])
            yield asked.tensors["model"], float(mean) - (number - 1) / number * gap


def solved(found: list[tuple[dict[str, Tensor], float]], run: Path) -> tuple[float, float, str, float]:
    """The person's age, hours and job that fit the losses best, and how badly they fit."""
    encoding = Agreement.load(run / "encoding.json").encoding
    assert encoding is not None
    names = encoding.features
    numeric = {column.name: column for column in encoding.columns if column.name in ("age", "hours")}
    best = (0.0, 0.0, "", np.inf)
    for job in ("clerk", "nurse", "smith"):
        known = np.array([name in (f"job={job}", "sex=male") for name in names], dtype=np.float64)
        rows, sides = zip(*(_equation(model, loss, known) for model, loss in found), strict=True)
        unknown = np.array(rows)[:, [names.index("age"), names.index("hours")]]
        answer = np.linalg.lstsq(unknown, np.array(sides), rcond=None)[0]
        misfit = float(np.abs(unknown @ answer - np.array(sides)).max())
        if misfit < best[3]:
            age, hours = (numeric[name].mean + numeric[name].scale * value  # type: ignore[union-attr]
                          for name, value in zip(("age", "hours"), answer, strict=True))  # fmt: skip
            best = (float(age), float(hours), job, misfit)
    return best


def _equation(model: dict[str, Tensor], loss: float, known: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    weight, bias = _parameters(model)
    direction = weight[LABEL] - weight[1 - LABEL]
    margin = -np.log(np.expm1(loss))
    return direction, float(margin - direction @ known - (bias[LABEL] - bias[1 - LABEL]))


def _parameters(model: dict[str, Tensor]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    weight, bias = (next(v for n, v in model.items() if n.endswith(end)).double().numpy() for end in ("weight", "bias"))
    return weight, bias


def persons_loss(model: dict[str, Tensor], run: Path) -> float:
    """What the attacker is after, from the row itself."""
    encoding = Agreement.load(run / "encoding.json").encoding
    assert encoding is not None
    row = encoding.encode(pd.DataFrame({"age": [AGE], "hours": [HOURS], "job": [JOB], "sex": ["male"]}))[0].double()
    weight, bias = _parameters(model)
    logits = torch.from_numpy(weight) @ row + torch.from_numpy(bias)
    return float(logits.logsumexp(0) - logits[LABEL])


def assert_nothing_small_was_sent(sites: Curious, run: Path, fewest: int) -> None:
    """No count under the floor, no loss of such a cell, and no number that is the person's loss."""
    for kind, asked, given in sites.kept:
        for name, record in given.tensors.items():
            if "confusion" in record:
                count = record["confusion"].sum(0)
                assert bool(((count == 0) | (count >= fewest)).all()), (kind, name)
                assert not bool(record["loss"][count == 0].any()), (kind, name)
        if kind == "agree" and "ended" not in asked.facts:
            told = given.tensors["counts"]
            rest = int(told["rows"]) - int(told["train"].sum())
            assert bool(((told["train"] == 0) | (told["train"] >= fewest)).all())
            assert rest == 0 or rest >= fewest
        if kind == "train":
            assert given.tensors.keys() <= {"model", "state", "tally", "validation"}
            assert given.facts.keys() == {"rows"}
            for model in (asked.tensors["model"], given.tensors["model"]):
                secret = persons_loss(model, run)
                values = [v.double().flatten() for record in given.tensors.values() for v in record.values()]
                assert float((torch.cat(values) - secret).abs().min()) > 1e-7
                assert struct.pack("<d", secret) not in on_the_wire(given)


def test_the_attack_succeeds_where_no_cell_is_withheld(tmp_path: Path) -> None:
    """With min_group 0 FairFed sends every cell: three rounds are enough to solve for the row."""
    sites, plan = attacked(tmp_path, algorithm={"name": "fairfed"}, rules={"min_group": 0})
    age, hours, job, _ = solved(list(cell_losses(sites, plan))[:3], tmp_path / "run")
    assert (age, hours) == pytest.approx((AGE, HOURS), abs=1e-3) and job == JOB


ALGORITHMS: dict[str, dict[str, Any]] = {
    "ffalm": {"name": "ffalm"},
    "ffalm by batches": {"name": "ffalm", "dual_data": "last_batch"},
    "fpfl": {"name": "fpfl"},
    "fairfed": {"name": "fairfed"},
    "fedminmax": {"name": "fedminmax"},
    "fedgft by loss": {"name": "fedgft", "constraint": "loss"},
    "fairalm": {"name": "fairalm"},
    "fairalm of one label": {"name": "fairalm", "labels": "favourable"},
}


@pytest.mark.parametrize("alone_in_group", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_numbers_that_the_attack_needs_are_not_sent(tmp_path: Path, algorithm: str, alone_in_group: bool) -> None:
    sites, plan = attacked(tmp_path, alone_in_group, algorithm=ALGORITHMS[algorithm])
    assert len(sites.training) == ROUNDS and list(cell_losses(sites, plan)) == []
    assert_nothing_small_was_sent(sites, tmp_path / "run", 10)


def group_losses(sites: Curious, plan: FederationConfig) -> Iterator[tuple[dict[str, Tensor], float]]:
    """Models, and the sum of the losses of all men at the site, from the state that the site stepped to."""
    for _, asked, given in sites.training:
        before, after, rows = asked.tensors["state"], given.tensors["state"], int(given.facts["rows"])
        if plan.algorithm.name == "fedminmax":
            step = (after["group_weights"] - before["group_weights"]) / plan.algorithm.step  # type: ignore[attr-defined]
            yield asked.tensors["model"], float(step[GROUP] * before["group_shares"][GROUP]) * rows
        else:
            yield asked.tensors["model"], float(after["rates"][0, GROUP] * before["rate_shares"][0, GROUP]) * rows


@pytest.mark.parametrize("algorithm", ["fedminmax", "fedgft by loss"])
def test_a_step_that_tells_a_groups_losses_tells_none_of_a_group_of_one(tmp_path: Path, algorithm: str) -> None:
    sites, plan = attacked(tmp_path / "open", True, algorithm=ALGORITHMS[algorithm], rules={"min_group": 0})
    found = list(group_losses(sites, plan))
    age, hours, job, _ = solved(found[1:4], tmp_path / "open" / "run")
    assert (age, hours) == pytest.approx((AGE, HOURS), abs=1e-2) and job == JOB  # so the attack works
    sites, plan = attacked(tmp_path / "floor", True, algorithm=ALGORITHMS[algorithm])
    for model, loss in group_losses(sites, plan):
        assert abs(loss - persons_loss(model, tmp_path / "floor" / "run")) > 1


@pytest.mark.parametrize("algorithm", ["ffalm", "ffalm by batches", "fairalm", "fairalm of one label"])
def test_a_group_of_few_rows_moves_no_dual(tmp_path: Path, algorithm: str) -> None:
    """The gap would be the losses of many less that of one person."""

    def steps(sites: Curious) -> list[float]:
        states = [(asked.tensors["state"], given.tensors["state"]) for _, asked, given in sites.training]
        return [float(after["dual"] - before["dual"]) for before, after in states]

    asked = ALGORITHMS.get(algorithm, {"name": algorithm})
    shown, _ = attacked(tmp_path / "open", True, algorithm=asked, rules={"min_group": 0})
    assert 0.0 not in steps(shown)
    hidden, _ = attacked(tmp_path / "floor", True, algorithm=asked)
    assert steps(hidden) == [0.0] * ROUNDS


def test_the_steps_of_fpfl_do_not_tell_how_many_are_in_a_small_group(tmp_path: Path) -> None:
    """|L - mu_0| / |L - mu_1| = n_1 / n_0, and n is known."""

    def men(sites: Curious) -> list[float]:
        steps = [
            given.tensors["state"]["duals"] - asked.tensors["state"]["duals"] for _, asked, given in sites.training
        ]
        rows = int(sites.training[0].given.facts["rows"])
        return [float(rows * step[0] / step.sum()) for step in steps]

    shown, _ = attacked(tmp_path / "open", True, algorithm=ALGORITHMS["fpfl"], rules={"min_group": 0})
    assert men(shown) == pytest.approx([1.0] * ROUNDS, abs=1e-3)
    hidden, _ = attacked(tmp_path / "floor", True, algorithm=ALGORITHMS["fpfl"])
    assert min(men(hidden)) > 10


def test_a_sites_own_floor_protects_it_whatever_the_federations_rule_says(tmp_path: Path) -> None:
    sites, plan = attacked(tmp_path, algorithm={"name": "fairfed"}, rules={"min_group": 0}, own_floor=10)
    assert list(cell_losses(sites, plan)) == []
    assert_nothing_small_was_sent(sites, tmp_path / "run", 10)


def test_a_stepped_state_and_the_mean_loss_together_would_give_the_row_away(tmp_path: Path) -> None:
    """The loss of the only man follows from the gap of the groups and the mean; so the mean loss is withheld."""
    sites, plan = attacked(tmp_path, True, algorithm=ALGORITHMS["ffalm by batches"], rules={"min_group": 0})
    age, hours, job, _ = solved(list(cell_losses(sites, plan)), tmp_path / "run")
    assert (age, hours) == pytest.approx((AGE, HOURS), abs=0.1) and job == JOB


def test_the_mean_loss_of_a_batch_with_few_rows_of_a_cell_is_withheld(tmp_path: Path) -> None:
    """Every cell of the site is large; the only batch of a round is not."""
    names = ("north", "south")
    sites = Curious({name: site_folder(tmp_path, name, people(400, seed)) for seed, name in enumerate(names)})
    training = {"rounds": 2, "batch_size": 16, "local_steps": 1}
    plan = config(names, rules={"min_group": 10}, algorithm=ALGORITHMS["ffalm by batches"], training=training)
    coordinate(plan, tmp_path / "run", sites, pause=0.001)
    agreed = next(one for one in sites.kept if "counts" in one.given.tensors).given
    assert not agreed.tensors["counts"]["train.withheld"].any()
    assert [given.facts.keys() for _, _, given in sites.training] == [{"rows"}] * 2


def test_federated_averaging_tells_its_mean_loss_and_no_tally(tmp_path: Path) -> None:
    sites, _ = attacked(tmp_path, algorithm={"name": "fedavg"})
    for _, _, given in sites.training:
        assert given.tensors.keys() == {"model", "validation"} and given.facts.keys() == {"rows", "loss", "negative"}
