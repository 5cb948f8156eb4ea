"""Secure sums under differential privacy: sites bound their numbers and share the noise out."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.federate.makers import NAMES, Killed, World, config, exchange_keys, world

import ffalm
from ffalm.data.types import Task
from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.engines.server import ClientUpdate
from ffalm.errors import PublicError, UserError
from ffalm.fairness import Tally
from ffalm.federate.answer_ledger import AnswerLedger
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.secure import secure_clients, secure_site
from ffalm.federate.secure.first_asked import FILE
from ffalm.federate.secure.private_payload import NoiseShare, private_round_numbers, private_score_numbers
from ffalm.privacy import Privacy, epsilon_of

OPEN = {"noise": 0.0, "clip": 1.0, "state_clip": 1e5, "loss_bound": 1e6}
LOUD = {"noise": 8.0, "tally_noise": 16.0, "clip": 0.2}
TASK = Task("t")


def plan(privacy: dict[str, Any], rounds: int = 2, **rules: Any) -> FederationConfig:
    training = {"rounds": rounds, "lr": 0.01}
    return config(NAMES[:3], rules={"secure": True, **rules}, privacy=privacy, training=training)


def keyed(root: Path, rows: tuple[int, ...] = (40, 30, 35)) -> World:
    sites = world(root, rows)
    exchange_keys(sites.folders)
    return sites


def test_without_noise_and_bounds_it_comes_to_the_model_of_a_plain_secure_run(tmp_path: Path) -> None:
    sites = keyed(tmp_path)
    for name, privacy in (("plain", {}), ("open", OPEN)):
        coordinate(plan(privacy), tmp_path / name, sites, pause=0.001)
    plain, private = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "open"))
    for name, value in plain.items():
        torch.testing.assert_close(private[name], value, rtol=0, atol=2e-6)
    tests = [json.loads((tmp_path / name / "result.json").read_text())["test"] for name in ("plain", "open")]
    assert tests[1] == pytest.approx(tests[0], abs=1e-5, nan_ok=True)


def test_a_run_tells_what_it_spent_and_its_noise_is_another_in_every_run(tmp_path: Path) -> None:
    sites = keyed(tmp_path)
    outcomes = [coordinate(plan(LOUD), tmp_path / name, sites, pause=0.001) for name in ("first", "second")]
    each, scores = 4 / 64 + 4 / 256, 4 / 256
    expected = [epsilon_of(math.sqrt(round * each), 1e-5) for round in (1, 2)]
    assert [record["epsilon"] for record in outcomes[0].history] == pytest.approx(expected)
    assert not {"train_loss", "accuracy", "loss"} & {name for record in outcomes[0].history for name in record}
    page = (tmp_path / "first" / "report.md").read_text()
    assert f"epsilon = {epsilon_of(math.sqrt(2 * each + scores), 1e-5):.3g} at delta = 1e-05" in page
    assert "against the coordinator, which saw only sums with noise" in page
    assert outcomes[0].history[0]["dual"] != outcomes[1].history[0]["dual"]
    assert math.isfinite(outcomes[0].test["accuracy"])


def share(folder: Path, purpose: str = "train 1", fewest: int = 4, **settings: float) -> NoiseShare:
    privacy = Privacy(**{"noise": 2.0, "clip": 0.5, "state_clip": 0.1, **settings})
    return NoiseShare.of(privacy, folder, "a run", purpose, fewest)


SENT = Snapshot(0, {"w": torch.zeros(4000), "still": torch.ones(3)}, ffalm.FFALM().start(TASK, torch.ones(1, 2, 2)))


def numbers(given: NoiseShare, size: float = 1e3, weight: float = 0.5) -> dict[str, Any]:
    reply = ClientUpdate({"w": torch.full((4000,), size), "still": torch.full((3,), 9.0)}, None, 3.0, 0.5)
    moved = {**SENT.state, "dual": SENT.state["dual"] + 1e4}
    return private_round_numbers(
        SENT, reply, moved, weight, 10, given, ffalm.FFALM(), TASK, frozen=frozenset({"still"})
    )


def test_a_change_is_bounded_weighted_and_has_its_share_of_the_noise(tmp_path: Path) -> None:
    quiet = numbers(share(tmp_path, noise=0.0))
    assert np.linalg.norm(quiet["model's 'w'"]) == pytest.approx(0.5 * 0.5)
    assert quiet["model's 'still'"].tolist() == [0, 0, 0]
    assert quiet["state's 'dual'"] == pytest.approx(0.5 * (float(SENT.state["dual"]) + 0.1))
    assert (quiet["loss"], quiet["negative"], quiet["rows"]) == (0, 0, 10)
    noise = numbers(share(tmp_path))["model's 'w'"] - quiet["model's 'w'"]
    assert noise.std() == pytest.approx(2.0 * 0.5 / math.sqrt(4), rel=0.05) and abs(noise.mean()) < 0.05
    for lost in (math.inf, math.nan):
        assert np.isfinite(numbers(share(tmp_path), lost)["model's 'w'"]).all()


def test_the_same_question_gets_the_same_noise_and_another_one_other_noise(tmp_path: Path) -> None:
    first, again = (numbers(share(tmp_path))["model's 'w'"] for _ in range(2))
    assert np.array_equal(first, again)
    other = numbers(share(tmp_path, "train 2"))["model's 'w'"]
    (tmp_path / "south").mkdir()
    elsewhere = numbers(share(tmp_path / "south"))["model's 'w'"]
    for unlike in (other, elsewhere):
        assert abs(np.corrcoef(first, unlike)[0, 1]) < 0.1
    assert (tmp_path / ".answered" / "noise.key").stat().st_mode & 0o777 == 0o600


def test_scores_have_noise_of_a_sites_reach_whatever_the_coordinator_says(tmp_path: Path) -> None:
    counts = torch.tensor([[30, 40], [0, 0]])
    tally = Tally(torch.stack([counts, torch.zeros_like(counts)]), 1e9 * counts.double())
    drawn = []
    for number in range(60):
        given = share(tmp_path, f"score {number}", fewest=4, tally_noise=3.0, loss_bound=2.0)
        told = private_score_numbers(tally, 0.0, given)
        drawn.append(told["counts of the test rows"] - tally.confusion.numpy())
        assert abs(told["losses of the test rows"][0, 0] - 2.0 * 30) < 10 * 2 * 3 * math.sqrt(3) / 2 * 50
    assert np.std(drawn) == pytest.approx(3.0 * math.sqrt(3) / 2 * 50, rel=0.15)


def test_scores_are_not_told_again_with_other_noise_of_the_same_draw(tmp_path: Path) -> None:
    """Sums T + r Z and T + 2 r Z would give T: a site answers for one r."""
    sites, asked = keyed(tmp_path), plan(LOUD, rounds=1)
    coordinate(asked, tmp_path / "run", sites, pause=0.001)
    (tmp_path / "run" / "result.json").unlink()
    answer, refused = sites._answer, list[str]()

    def louder(kind: Kind, name: str, message: Message) -> Message | Failure:
        if "reach" in message.facts:
            message = replace(message, facts={**message.facts, "reach": 2 * float(message.facts["reach"])})
        given = answer(kind, name, message)
        refused.extend([given.reason] if isinstance(given, Failure) else [])
        return given

    sites._answer = louder  # type: ignore[method-assign]
    with pytest.raises(UserError):
        coordinate(asked, tmp_path / "run", sites, pause=0.001)
    assert refused and all("for another model or other terms" in why for why in refused)


def test_a_round_that_is_asked_again_has_the_noise_of_the_first_time_at_sites_that_did_not_help_to_reveal_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sums with a third and with a fourth of the noise of east would give that noise, by subtraction."""
    sites = keyed(tmp_path, (40, 30, 35, 30))
    asleep, drawn = {"east"}, dict[str, list[int]]()
    answer = sites._answer

    def unasked(kind: Kind, name: str, message: Message) -> Message | Failure:
        if message.facts.get("stage") == "reveal" and name in asleep:
            return Failure("late", "It was not asked.")
        return answer(kind, name, message)

    def noted(settings: Privacy, folder: Path, run: str, purpose: str, fewest: int) -> NoiseShare:
        drawn.setdefault(folder.name, []).append(fewest)
        return NoiseShare.of(settings, folder, run, purpose, fewest)

    def killed(*others: Any) -> Any:
        raise Killed

    def asked(threshold: float) -> FederationConfig:
        rules, training = {"secure": True, "patience": 0.0}, {"rounds": 1, "lr": 0.01}
        return config(NAMES, rules=rules, privacy=LOUD, training=training, secure={"threshold": threshold})

    sites._answer = unasked  # type: ignore[method-assign]
    monkeypatch.setattr(secure_site, "NoiseShare", SimpleNamespace(of=noted))
    with monkeypatch.context() as patched:
        patched.setattr(secure_clients, "round_sum", killed)  # between the sum and its checkpoint
        with pytest.raises(Killed):
            coordinate(asked(0.51), tmp_path / "run", sites, pause=0.001)
    asleep.clear()
    coordinate(asked(1.0), tmp_path / "run", sites, pause=0.001)
    assert [fewest[:2] for fewest in drawn.values()] == [[3, 3]] * 4


def test_a_site_gives_no_share_of_the_noise_of_more_sites_than_a_later_sum_may_be_of(tmp_path: Path) -> None:
    terms = SimpleNamespace(run="a run", run_key="terms")
    ledger = AnswerLedger(tmp_path, terms)  # type: ignore[arg-type]
    assert [ledger.fewest("train 1", sites) for sites in (4, 5, 4)] == [4, 4, 4]
    assert AnswerLedger(tmp_path, terms).fewest("train 1", 6) == 4  # type: ignore[arg-type]
    with pytest.raises(PublicError, match="the noise of 4 sites, and this sum may be of 3"):
        ledger.fewest("train 1", 3)
    assert ledger.fewest("train 2", 3) == 3


def test_sites_that_lost_their_ledgers_draw_other_noise_for_another_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites, drawn = keyed(tmp_path), list[tuple[str, bytes]]()

    def noted(settings: Privacy, folder: Path, run: str, purpose: str, fewest: int) -> NoiseShare:
        found = NoiseShare.of(settings, folder, run, purpose, fewest)
        drawn.append((folder.name, found.key))
        return found

    monkeypatch.setattr(secure_site, "NoiseShare", SimpleNamespace(of=noted))
    for share in (1.0, 1.0, 0.34):  # the largest weight of the third is another
        coordinate(plan(LOUD, rounds=1, max_share=share), tmp_path / "run", sites, pause=0.001)
        (tmp_path / "run" / "result.json").unlink()
        (tmp_path / "run" / FILE).unlink()
        shutil.rmtree(tmp_path / "run" / "checkpoint")
        for folder in sites.folders.values():
            for ledger in (folder / ".answered").glob("*.json"):
                ledger.unlink()
    of_rounds = [drawn[first : first + 3] for first in (0, 6, 12)]  # those of the scores are between
    assert of_rounds[0] == of_rounds[1] and not {*of_rounds[0]} & {*of_rounds[2]}


def test_a_range_that_noise_would_leave_is_refused() -> None:
    with pytest.raises(UserError, match="beyond the model_range of 16"):
        plan({"noise": 10.0, "clip": 1.0})
