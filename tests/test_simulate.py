"""`ffalm.simulate`: what it gives back, what it refuses, and how it ends when a run diverges."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ffalm
from ffalm.errors import UserError

FAST: dict[str, Any] = {"engine": "loop", "device": "cpu", "threads": 1}
Arrays = tuple[Any, Any, Any]


def arrays(seed: int, rows: int) -> Arrays:
    """Rows in which every label meets every group."""
    draws = np.random.default_rng(seed)
    group = np.r_[0, 0, 1, 1, draws.integers(0, 2, rows - 4)]
    y = np.r_[0, 1, 0, 1, draws.random(rows - 4) < 0.3 + 0.4 * group[4:]].astype(int)
    return draws.normal(size=(rows, 4)) + 0.8 * y[:, None], y, group


def federation(seed: int = 0, **parts: Any) -> ffalm.Federation:
    clients = [arrays(10 * seed + number, rows) for number, rows in enumerate((21, 34, 13))]
    scored = {"validation": arrays(90, 30), "test": arrays(91, 40), **parts}
    return ffalm.Federation.from_arrays(clients, **scored)


def refusal(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as refused:
        ffalm.simulate(*arguments, **{**FAST, **settings})
    assert str(refused.value).endswith((".", "?"))
    return str(refused.value)


def test_a_result_holds_test_metrics_history_model_and_state() -> None:
    fed = federation()
    result = ffalm.simulate(ffalm.FFALM(), fed, model="mlp", rounds=3, **FAST)
    assert {"accuracy", "dpd", "eod", "loss_gap"} <= set(result.test)
    assert all(0 <= result.test[name] <= 1 for name in ("accuracy", "dpd", "eod"))
    assert [record["round"] for record in result.history] == [1, 2, 3]
    assert result.history[-1]["dual"] == float(result.state["dual"])
    assert len(result.clients) == 3
    assert result.diverged is None
    low, high = result.interval("dpd")
    assert low <= result.test["dpd"] <= high
    module = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    module.load_state_dict(result.state_dict)
    assert fed.test is not None
    with torch.no_grad():
        prediction = module(fed.test.x.float()).argmax(-1)
    tally = ffalm.metrics.tally(fed.test.y, prediction, fed.test.group)
    assert result.test["accuracy"] == tally.accuracy()
    assert result.test["dpd"] == tally.dpd()
    assert result.test["eod"] == tally.eod()


def test_an_interval_is_about_the_label_that_the_test_metrics_are_about() -> None:
    fed = federation()
    assert fed.test is not None
    turned = ffalm.Federation(fed.clients, fed.validation, fed.test, replace(fed.task, favourable=0))
    result = ffalm.simulate(ffalm.FedAvg(), turned, rounds=2, lr=0.5, **FAST)
    assert result.tally is not None
    assert result.interval("eod") == result.tally.interval("eod", favourable=0)
    assert result.interval("eod") != result.interval("eod", favourable=1)


def test_the_clients_own_metrics_are_those_of_the_final_model_on_their_rows() -> None:
    fed = federation()
    result = ffalm.simulate(ffalm.FedAvg(), fed, model="linear", rounds=2, **FAST)
    module = nn.Sequential(nn.Linear(4, 2))
    module.load_state_dict(result.state_dict)
    for client, scores in zip(fed.clients, result.clients, strict=True):
        with torch.no_grad():
            right = (module(client.x.float()).argmax(-1) == client.y).double().mean()
        assert scores["accuracy"] == pytest.approx(float(right))


def test_an_algorithm_may_be_given_by_its_name() -> None:
    by_name = ffalm.simulate("fpfl", federation(), rounds=2, **FAST)
    by_object = ffalm.simulate(ffalm.FPFL(), federation(), rounds=2, **FAST)
    assert torch.equal(by_name.state["duals"], by_object.state["duals"])


def test_several_seeds_give_the_results_of_each_alone_in_their_order() -> None:
    run: dict[str, Any] = {"rounds": 2, "batch_size": 8, **FAST}
    together = ffalm.simulate(ffalm.FFALM(), federation(), seed=[4, 1], **run)
    for result, seed in zip(together, (4, 1), strict=True):
        alone = ffalm.simulate(ffalm.FFALM(), federation(), seed=seed, **run)
        assert result.seed == seed
        assert result.test == alone.test
        assert all(torch.equal(result.state_dict[name], alone.state_dict[name]) for name in alone.state_dict)


def test_every_seed_may_have_its_own_federation() -> None:
    feds = [federation(0), federation(1)]
    run: dict[str, Any] = {"rounds": 2, **FAST}
    together = ffalm.simulate(ffalm.FedAvg(), feds, seed=[0, 0], **run)
    for result, fed in zip(together, feds, strict=True):
        assert result.test == ffalm.simulate(ffalm.FedAvg(), fed, seed=0, **run).test
    assert together[0].test != together[1].test


def test_one_seed_in_a_list_gives_a_list() -> None:
    assert len(ffalm.simulate(ffalm.FedAvg(), federation(), seed=[3], rounds=1, **FAST)) == 1


def test_a_whole_number_of_numpy_is_a_seed_too() -> None:
    run: dict[str, Any] = {"rounds": 1, **FAST}
    one = ffalm.simulate(ffalm.FedAvg(), federation(), seed=np.int64(3), **run)  # type: ignore[call-overload]
    assert one.test == ffalm.simulate(ffalm.FedAvg(), federation(), seed=3, **run).test


def test_without_a_test_part_there_is_no_test_and_no_interval() -> None:
    result = ffalm.simulate(ffalm.FedAvg(), federation(test=None), rounds=1, **FAST)
    assert result.test == {}
    assert result.tally is None
    with pytest.raises(UserError, match="no test part"):
        result.interval("dpd")


def test_an_undefined_test_metric_is_nan_with_a_warning() -> None:
    x, y, s = arrays(5, 30)
    keep = ~((s == 1) & (y == 1))
    fed = federation(test=(x[keep], y[keep], s[keep]))
    with pytest.warns(UserWarning, match="No row of group '1' has the label '1'"):
        result = ffalm.simulate(ffalm.FedAvg(), fed, rounds=1, **FAST)
    assert math.isnan(result.test["eod"])
    assert not math.isnan(result.test["dpd"])
    assert len(result.notes) == 1


def test_the_callers_thread_count_comes_back() -> None:
    before = torch.get_num_threads()
    ffalm.simulate(ffalm.FedAvg(), federation(), rounds=1, engine="loop", device="cpu", threads=before + 1)
    assert torch.get_num_threads() == before
    for wrong in (10**9, True):  # OpenMP would end the process; torch takes no bool
        with pytest.raises(UserError, match="from 1 to 1024"):
            ffalm.simulate(ffalm.FedAvg(), federation(), rounds=1, threads=wrong)


# --- divergence -------------------------------------------------------------------------------------------------------


def test_a_model_that_blows_up_ends_the_run_with_the_round_and_keeps_the_history() -> None:
    run: dict[str, Any] = {"lr": 1e25, "clip": None, "rounds": 20, "model": "mlp", **FAST}
    with pytest.raises(ffalm.DivergedError) as ended:
        ffalm.simulate(ffalm.FedAvg(), federation(), **run)
    (result,) = ended.value.results
    last = result.history[-1]["round"]
    assert f"diverged in round {last}" in str(ended.value)
    assert "FedAvg" in str(ended.value)
    assert "smaller lr" in str(ended.value)
    assert [record["round"] for record in result.history] == list(range(1, last + 1))
    assert last < 20
    assert result.diverged == str(ended.value)
    sent = pickle.loads(pickle.dumps(ended.value))  # as from a worker of a pool
    assert str(sent) == str(ended.value) and len(sent.results[0].history) == last


def test_a_dual_that_blows_up_is_named_with_what_to_do() -> None:
    algorithm = ffalm.FFALM(dual_lr=1e200, dual_lr_growth=1e100)
    with pytest.raises(ffalm.DivergedError) as ended:
        ffalm.simulate(algorithm, federation(), rounds=8, **FAST)
    message = str(ended.value)
    assert "FFALM diverged in round" in message
    assert "dual" in message
    assert "safe" in message
    history = ended.value.results[0].history
    assert len(history) >= 1
    assert history[-1]["round"] == len(history)


def test_a_model_that_blows_up_under_a_bounded_dual_is_told_of_the_learning_rate() -> None:
    with pytest.raises(ffalm.DivergedError, match="try a smaller lr"):
        ffalm.simulate(ffalm.FFALM.preset("safe"), federation(), lr=1e25, clip=None, rounds=20, model="mlp", **FAST)


def test_one_seed_that_diverges_does_not_lose_the_others() -> None:
    calm = federation()
    x, y, s = arrays(0, 20)
    with pytest.warns(ffalm.UnscaledFeaturesWarning):
        wild = ffalm.Federation.from_arrays([(x * 1e30, y, s)], test=arrays(1, 20))
    run: dict[str, Any] = {"rounds": 3, "clip": None, "model": "mlp", **FAST}
    with pytest.raises(ffalm.DivergedError) as ended:
        ffalm.simulate(ffalm.FedAvg(), [calm, wild], seed=[0, 1], **run)
    finished, broken = ended.value.results
    assert finished.diverged is None
    assert finished.test["accuracy"] > 0
    assert broken.diverged is not None


def test_a_diverged_run_is_a_users_error() -> None:
    assert issubclass(ffalm.DivergedError, UserError)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_names_are_answered_with_the_nearest() -> None:
    assert "'ffalm'" in refusal("ffalmm", federation())
    assert "'loop'" in refusal(ffalm.FedAvg(), federation(), engine="lop")
    assert "'mlp'" in refusal(ffalm.FedAvg(), federation(), model="mpl")
    assert "'rounds'" in refusal(ffalm.FedAvg(), federation(), ronds=3)


def test_a_class_instead_of_an_algorithm_is_refused() -> None:
    assert "FFALM" in refusal(ffalm.FFALM, federation(), rounds=1)


def test_a_device_that_does_not_exist_is_refused() -> None:
    assert "'gpuu'" in refusal(ffalm.FedAvg(), federation(), device="gpuu")


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 0},
        {"rounds": 2.5},
        {"local_epochs": 0},
        {"local_steps": 0},
        {"batch_size": 0},
        {"lr": -0.1},
        {"lr": math.nan},
        {"lr": "fast"},
        {"lr_step": 0},
        {"lr_decay": 0.0},
        {"clip": 0.0},
        {"clip": -1.0},
        {"participation": 0.0},
        {"participation": 1.1},
    ],
)
def test_training_settings_without_meaning_are_refused(settings: dict[str, Any]) -> None:
    assert repr(next(iter(settings))) in refusal(ffalm.FedAvg(), federation(), **settings)


def test_a_finished_module_instead_of_a_way_to_make_one_is_refused() -> None:
    assert "function" in refusal(ffalm.FedAvg(), federation(), model=nn.Linear(4, 2), rounds=1)
    assert "nn.Module" in refusal(ffalm.FedAvg(), federation(), model=lambda: "model", rounds=1)
    assert "nn.Module" in refusal(ffalm.FedAvg(), federation(), model=3, rounds=1)


@pytest.mark.parametrize("engine", ["loop", "stacked", "auto"])
def test_a_function_that_gives_the_same_layers_again_is_refused(engine: str) -> None:
    """Each seed would start from the weights that another has trained."""
    module = nn.Linear(4, 2)
    told = refusal("fedavg", federation(), model=lambda: module, rounds=1, engine=engine)
    assert "must make a new module on every call" in told
    assert "a second time" in refusal(
        "fedavg", federation(), model=lambda: nn.Sequential(module), rounds=1, engine=engine
    )


def test_new_modules_may_share_layers_that_are_not_trained() -> None:
    frozen = nn.Linear(4, 4).requires_grad_(False)
    ffalm.simulate("fedavg", federation(), model=lambda: nn.Sequential(frozen, nn.Linear(4, 2)), rounds=1, **FAST)


def test_models_of_each_client_alone_are_no_model_for_new_rows() -> None:
    result = ffalm.simulate("local", federation(), model="linear", rounds=1, **FAST)
    with pytest.raises(UserError, match="a model for each client, so it has no single model"):
        result.predict(arrays(91, 40)[0])
    with pytest.raises(UserError, match="a blind rule is for one model"):
        ffalm.blind(result, federation(), model="linear", rounds=1)


def test_unequal_numbers_of_seeds_and_federations_are_refused() -> None:
    assert "2 seeds" in refusal(ffalm.FedAvg(), [federation()], seed=[0, 1], rounds=1)


@pytest.mark.parametrize("seed", [-1, [0, -3], 1.7, "12"])
def test_a_seed_that_is_no_whole_number_from_0_up_is_refused(seed: Any) -> None:
    assert "Seeds are" in refusal(ffalm.FedAvg(), federation(), seed=seed, rounds=1)


def test_no_seeds_at_all_are_refused() -> None:
    assert "Seeds are" in refusal(ffalm.FedAvg(), federation(), seed=[], rounds=1)


def test_three_groups_are_refused_by_methods_for_two_and_taken_by_the_others() -> None:
    x, y, _ = arrays(0, 30)
    fed = ffalm.Federation.from_arrays([(x, y, np.arange(30) // 2 % 3)])
    assert "two groups" in refusal(ffalm.FairFed(), fed, rounds=1)
    for name in ffalm.algorithms().keys() - {"fairfed", "lagrangian", "reductions"}:  # the latter want held-out rows
        assert len(ffalm.simulate(name, fed, rounds=1, **FAST).history) == 1
    assert ffalm.simulate(ffalm.FFALM(), fed, rounds=1, **FAST).state["dual"].shape == (2,)


# --- the public names -------------------------------------------------------------------------------------------------


def in_fresh_python(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_do_not_depend_on_what_was_used_first() -> None:
    """`ffalm.algorithms` is a function and also a package; importing the package must not hide the function."""
    code = (
        "import ffalm; ffalm.DivergedError; import ffalm.engines; print(callable(ffalm.simulate), *ffalm.algorithms())"
    )
    assert set(in_fresh_python(code).split()) >= {"True", "fairfed", "fedavg", "ffalm", "fpfl"}


def test_importing_the_package_costs_no_torch() -> None:
    assert in_fresh_python("import ffalm, sys; print('torch' in sys.modules)") == "False"


def test_a_model_that_does_not_fit_the_features_is_refused_before_training() -> None:
    fed = federation()
    with pytest.raises(UserError, match="cannot take features of shape") as caught:
        ffalm.simulate("fedavg", fed, model=lambda: torch.nn.Linear(99, 2), rounds=1, engine="loop")
    assert "\n" not in str(caught.value)


def test_a_last_batch_of_one_row_under_batchnorm_is_refused_with_the_remedy() -> None:
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(9, 3)), np.arange(9) % 2, np.arange(9) // 5
    fed = ffalm.Federation.from_arrays([rows])

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    with pytest.raises(UserError, match="choose another batch_size"):
        ffalm.simulate("fedavg", fed, model=model, rounds=1, batch_size=8, engine="loop")


def test_a_result_is_shown_in_a_few_words() -> None:
    shown = repr(ffalm.simulate("fedavg", federation(), rounds=2, **FAST))
    assert shown.startswith("Result(seed=0, rounds=2, accuracy=0.")
    assert len(shown) < 120


def test_a_schedule_that_outgrows_a_float_counts_as_divergence() -> None:
    wild = ffalm.FFALM(dual_lr_growth=1e200)
    with pytest.raises(ffalm.DivergedError, match="round 3"):
        ffalm.simulate(wild, federation(), rounds=9, engine="loop")


def test_numpy_numbers_are_taken_as_settings() -> None:
    given: dict[str, Any] = {"rounds": np.int64(2), "lr": np.float32(0.1), **FAST}
    result = ffalm.simulate("fedavg", federation(), **given)
    assert len(result.history) == 2


def test_a_fraction_is_no_seed_and_nothing_is_no_federation() -> None:
    for seed in (1.5, [0, 0.5], "0"):
        with pytest.raises(UserError, match="Seeds are whole numbers"):
            ffalm.simulate(ffalm.FedAvg(), federation(), seed=seed, rounds=1, **FAST)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Give a Federation"):
        ffalm.simulate(ffalm.FedAvg(), None, rounds=1, **FAST)  # type: ignore[call-overload]


def test_a_model_that_gives_no_tensor_is_refused() -> None:
    with pytest.raises(UserError, match="must give a tensor of logits; it gave a tuple"):
        ffalm.simulate(ffalm.FedAvg(), federation(), model=lambda: nn.LSTM(4, 2), rounds=1, **FAST)


def test_what_on_round_does_with_its_record_leaves_the_history_alone() -> None:
    result = ffalm.simulate(ffalm.FedAvg(), federation(), rounds=2, on_round=lambda record: record.clear())
    assert [record["round"] for record in result.history] == [1, 2]


def test_what_is_no_federation_is_named() -> None:
    given: Any = "census"
    with pytest.raises(UserError, match=r"such as `ffalm.load\(...\)` returns, .* got 'census'"):
        ffalm.simulate("ffalm", given)
