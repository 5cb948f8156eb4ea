"""Whole simulations under privacy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.variants import variants
from torch import Tensor, nn

import ffalm
from ffalm import Federation, Privacy
from ffalm.algorithms import Algorithm
from ffalm.engines import ENGINES, Job, Training
from ffalm.engines.loop import LoopClients
from ffalm.engines.server import ServerContext, rounds
from ffalm.errors import UserError
from ffalm.privacy import epsilon_of
from ffalm.simulation import model_factory

BRIEF: dict[str, Any] = {"model": "linear", "rounds": 3, "batch_size": 16, "seed": 1}
OPEN = Privacy(0.0, clip=1e9, state_clip=1e9, loss_bound=1e9)


NOISY = [algorithm for algorithm in variants() if not (algorithm.uploads or algorithm.products)]


def ids(algorithm: Algorithm) -> str:
    return repr(algorithm)


@pytest.mark.parametrize("algorithm", NOISY, ids=ids)
def test_noise_0_and_no_bounds_equal_the_plain_run(algorithm: Algorithm, federation: Federation) -> None:
    plain = ffalm.simulate(algorithm, federation, engine="loop", **BRIEF)
    private = ffalm.simulate(algorithm, federation, privacy=OPEN, **BRIEF)
    for name, value in plain.state_dict.items():
        torch.testing.assert_close(private.state_dict[name], value)
    for name, value in plain.state.items():
        torch.testing.assert_close(private.state[name], value)
    assert private.epsilon == math.inf and plain.epsilon is None


def three_groups(labels: int) -> Federation:
    """Four small clients with three groups and this many labels."""
    draws = torch.Generator().manual_seed(0)

    def part(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(rows, 3, generator=draws)
        return x, (x[:, 0] * 9).long().abs() % labels, torch.arange(rows) % 3

    return Federation.from_arrays([part(rows) for rows in (40, 24, 32, 16)], validation=part(40), test=part(40))


@pytest.mark.parametrize("labels", [2, 4])
def test_fpfl_with_three_groups_runs_under_privacy(labels: int) -> None:
    federation = three_groups(labels)
    plain = ffalm.simulate("fpfl", federation, engine="loop", **BRIEF)
    private = ffalm.simulate("fpfl", federation, privacy=OPEN, **BRIEF)
    torch.testing.assert_close(private.state["duals"], plain.state["duals"])
    noisy = ffalm.simulate("fpfl", federation, privacy=Privacy(6.0), **BRIEF)
    assert noisy.state["duals"].shape == (3,) and noisy.state["duals"].isfinite().all()


def test_what_is_frozen_gets_no_noise_and_the_rest_as_much_as_ever(federation: Federation) -> None:
    columns = federation.clients[0].x.shape[1]

    def half_frozen() -> nn.Module:
        body = nn.Linear(columns, 3).requires_grad_(requires_grad=False)
        return nn.Sequential(body, nn.ReLU(), nn.Linear(3, 2))

    brief = {**BRIEF, "model": half_frozen}
    plain = ffalm.simulate(ffalm.FedAvg(), federation, **brief)
    private = ffalm.simulate(ffalm.FedAvg(), federation, privacy=Privacy(6.0), **brief)
    for name, value in plain.state_dict.items():
        assert torch.equal(private.state_dict[name], value) == name.startswith("0.")


@pytest.mark.parametrize("algorithm", NOISY, ids=ids)
def test_every_algorithm_runs_with_noise_and_tells_what_it_spent(algorithm: Algorithm, federation: Federation) -> None:
    result = ffalm.simulate(algorithm, federation, privacy=Privacy(6.0, tally_noise=12.0), **BRIEF)
    tallies = 4 / 144 if algorithm.measure.value != "nothing" else 0.0
    expected = [epsilon_of(math.sqrt(round * (4 / 36 + tallies)), 1e-5) for round in (1, 2, 3)]
    assert [record["epsilon"] for record in result.history] == pytest.approx(expected)
    assert all(value.isfinite().all() for value in result.state_dict.values())


def small_network() -> nn.Module:
    """Convolutions and BatchNorm: images lie channels_last, variances and counters are part of the model."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))


def test_models_of_images_keep_layout_counters_and_variances() -> None:
    draws = torch.Generator().manual_seed(0)

    def part() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(12, 3, 5, 5, generator=draws), torch.arange(12) % 2, torch.arange(12) // 2 % 2

    federation = Federation.from_arrays([part() for _ in range(3)], validation=part(), test=part())
    settings: dict[str, Any] = {"model": small_network, "rounds": 2, "batch_size": 6}
    plain = ffalm.simulate("fedavg", federation, engine="loop", **settings)
    same = ffalm.simulate("fedavg", federation, privacy=OPEN, **settings)
    for name, value in plain.state_dict.items():
        torch.testing.assert_close(same.state_dict[name], value)
    loud = ffalm.simulate("fedavg", federation, privacy=Privacy(30.0), **settings)
    assert (loud.state_dict["1.running_var"] >= 0).all() and math.isfinite(loud.test["loss"])
    assert loud.state_dict["1.num_batches_tracked"] == plain.state_dict["1.num_batches_tracked"] == 4


def test_records_tell_nothing_of_clients_that_has_no_noise(federation: Federation) -> None:
    result = ffalm.simulate("ffalm", federation, privacy=Privacy(6.0), **BRIEF)
    assert not {"train_loss", "negative_weight_share", "privacy_spent"} & result.history[0].keys()


def test_the_same_seed_gives_the_same_noise_and_another_seed_other_noise(federation: Federation) -> None:
    first, again = (ffalm.simulate("ffalm", federation, privacy=Privacy(6.0), **BRIEF) for _ in range(2))
    for name, value in first.state_dict.items():
        assert torch.equal(value, again.state_dict[name])
    other = ffalm.simulate("ffalm", federation, privacy=Privacy(6.0), **{**BRIEF, "seed": 2})
    assert any(not torch.equal(value, other.state_dict[name]) for name, value in first.state_dict.items())


def test_a_client_that_sits_rounds_out_pays_for_those_it_trained_in(federation: Federation) -> None:
    result = ffalm.simulate(
        "fedavg", federation, privacy=Privacy(6.0), participation=0.5, **{**BRIEF, "rounds": 8, "lr": 0.01}
    )
    spent = result.state["privacy_spent"] / (4 / 36)
    trained = torch.tensor([[weight > 0 for weight in record["weights"]] for record in result.history]).sum(0)
    torch.testing.assert_close(spent, trained.double())
    assert result.epsilon == pytest.approx(epsilon_of(math.sqrt(float(trained.max()) * 4 / 36), 1e-5))
    assert trained.max() < 8


def job(federation: Federation, algorithm: Algorithm, privacy: Privacy | None) -> Job:
    training = Training(rounds=4, batch_size=8)
    return Job.of(
        algorithm, federation, model_factory("linear", federation), training, 0, torch.device("cpu"), privacy=privacy
    )


@pytest.mark.parametrize("algorithm", [ffalm.FFALM(), ffalm.FairFed()], ids=["ffalm", "fairfed"])
def test_a_run_that_goes_on_from_a_snapshot_ends_the_same(federation: Federation, algorithm: Algorithm) -> None:
    asked = job(federation, algorithm, Privacy(6.0))
    whole = list(rounds(ServerContext.of(asked), LoopClients(asked)))
    terms = ServerContext.of(asked)
    rest = list(rounds(type(terms)(**{**vars(terms), "start": whole[1].snapshot}), LoopClients(asked)))
    assert [done.record["epsilon"] for done in rest] == [done.record["epsilon"] for done in whole[2:]]
    for name, value in whole[-1].snapshot.model.items():
        assert torch.equal(value, rest[-1].snapshot.model[name])


def test_a_client_whose_training_diverges_neither_stops_the_run_nor_shows(federation: Federation) -> None:
    class Spoilt(LoopClients):
        def train(self, chosen: Any, sent: Any) -> Any:
            replies = super().train(chosen, sent)
            for value in replies[0].model.values():
                value.fill_(math.nan)
            return replies

    asked = job(federation, ffalm.FFALM(), Privacy(6.0))
    done = list(rounds(ServerContext.of(asked), Spoilt(asked)))
    assert len(done) == 4 and done[-1].diverged is None
    assert all(value.isfinite().all() for value in done[-1].snapshot.model.values())


@pytest.mark.parametrize("algorithm", NOISY, ids=ids)
def test_the_stacked_engine_gives_the_loops_private_numbers(algorithm: Algorithm, federation: Federation) -> None:
    asked = job(federation, algorithm, Privacy(6.0, tally_noise=12.0))
    loop, stacked = ([done for _, done in ENGINES[name]().train([asked])] for name in ("loop", "stacked"))
    assert [done.record["epsilon"] for done in stacked] == [done.record["epsilon"] for done in loop]
    assert not {"train_loss", "negative_weight_share", "privacy_spent"} & stacked[0].record.keys()
    for one, other in zip(loop, stacked, strict=True):
        for name, value in one.snapshot.model.items():
            torch.testing.assert_close(other.snapshot.model[name], value, rtol=1e-4, atol=1e-5)
        for name, value in one.snapshot.state.items():
            torch.testing.assert_close(other.snapshot.state[name], value, rtol=1e-4, atol=1e-5)


def test_uploads_beside_the_model_are_refused_under_privacy(federation: Federation) -> None:
    with pytest.raises(UserError, match="SCAFFOLD uploads more than models and Tallies"):
        ffalm.simulate("scaffold", federation, privacy=Privacy(6.0), **BRIEF)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_checkpoint_whose_entries_come_back_in_another_order_changes_no_number(
    federation: Federation, engine: str
) -> None:
    """safetensors gives entries back by name; noise is drawn in the model's own order."""
    asked = job(federation, ffalm.FFALM(), Privacy(6.0))
    asked = replace(asked, spec=replace(asked.spec, model=model_factory("mlp", federation)))
    whole = [done for _, done in ENGINES[engine]().train([asked])]
    kept = whole[1].snapshot
    assert list(kept.model) != sorted(kept.model, reverse=True)
    shuffled = replace(kept, model=dict(sorted(kept.model.items(), reverse=True)))
    rest = [done for _, done in ENGINES[engine]().train([replace(asked, start=shuffled)])]
    assert list(rest[-1].snapshot.model) == list(whole[-1].snapshot.model)
    for name, value in whole[-1].snapshot.model.items():
        assert torch.equal(value, rest[-1].snapshot.model[name])


def test_a_study_keeps_privacy_in_its_settings_and_tells_epsilon(tmp_path: Path) -> None:
    from ffalm import config as configs
    from ffalm.studies.study import compute_study

    settings = {
        "data": {"source": "census"},
        "partition": {"clients": 3},
        "model": {"name": "linear"},
        "training": {"rounds": 2, "local_steps": 1},
        "privacy": {"noise": 4.0, "clip": 0.5},
        "workers": 1,
        "algorithms": {"fedavg": {}, "ffalm": {"preset": "safe"}},
    }
    config = configs.parse(settings)
    assert config.privacy == Privacy(4.0, 0.5)
    assert configs.parse(config.to_plain()) == config
    notes = compute_study(config, tmp_path).outcome.notes
    for label, mechanisms in (("FedAvg", 2), ("FFALM (safe)", 4)):
        told = f"epsilon = {epsilon_of(math.sqrt(mechanisms * 4 / 16), 1e-5):.3g} at delta = 1e-05"
        assert any(note.startswith(label) and note.endswith(told) for note in notes)
    assert any("Not covered" in note and "on each client's own rows" in note for note in notes)


def test_an_answer_under_privacy_does_not_rest_on_training_rows(federation: Federation) -> None:
    shared: dict[str, Any] = {"model": "linear", "rounds": 2, "local_steps": 1, "algorithms": ["fedavg"]}
    private = ffalm.fair(federation, privacy=Privacy(4.0), **shared)
    assert ffalm.fair(federation, lr=0.05, **shared).training_rows
    assert not private.training_rows
    assert not any("raining rows" in sentence for sentence in private.explain().splitlines())


def test_flags_fill_the_section() -> None:
    from ffalm.cli.flags import overrides

    given = {"noise": 5.0, "privacy_clip": 0.1, "delta": 1e-6}
    assert overrides(given) == {"privacy": {"noise": 5.0, "clip": 0.1, "delta": 1e-6}}


def test_a_section_without_noise_says_what_it_needs() -> None:
    from ffalm import config as configs

    with pytest.raises(UserError, match="privacy needs the setting noise"):
        configs.parse({"algorithms": {"fedavg": {}}, "privacy": {"delta": 1e-6}})
