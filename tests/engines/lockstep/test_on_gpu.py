"""On a GPU the lockstep engine stays near the reference as bfloat16 allows, and gives the same bits every time."""

from __future__ import annotations

import pytest
import torch
from tests.engines.graphed.test_engine import federation
from tests.engines.lockstep.test_engine import SEVERAL
from tests.engines.test_conformance import by_job

from ffalm.algorithms import Algorithm
from ffalm.engines import Job, Together, Training, choose
from ffalm.engines.common import built_model
from ffalm.engines.jobs import Model
from ffalm.engines.lockstep import LockstepEngine
from ffalm.engines.loop import LoopEngine
from ffalm.models import CNN, ResNet18

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: the kernels need one"),
]


def jobs_of(algorithms: list[Algorithm], model: ResNet18 | CNN, precision: str = "bf16", rounds: int = 2) -> list[Job]:
    """Algorithms on one federation of 64 px images, whose clients have last batches of different sizes."""
    owned, plan = federation((40, 23, 16), pixels=64), Training(rounds=rounds, batch_size=16, lr=0.02)
    build = lambda: model.build((3, 64, 64), 2)  # noqa: E731
    return [
        Job.of(one, owned, build, plan, 0, torch.device("cuda"), precision=precision, channels_last=True)  # type: ignore[arg-type]
        for one in algorithms
    ]


def moved(before: Model, after: Model) -> torch.Tensor:
    """How training changed the floating numbers of a model, as one vector."""
    changes = [after[name] - before[name] for name in before if before[name].is_floating_point()]
    return torch.cat([change.flatten().double() for change in changes])


@pytest.mark.parametrize("model", [ResNet18(), CNN((16, 32))], ids=str)
def test_models_move_as_the_references_do(model: ResNet18 | CNN) -> None:
    """Three ways: ours in bfloat16, the loop in bfloat16 and in float32; ours errs no more than twice as the loop's."""
    ours = by_job(LockstepEngine().train(jobs_of(SEVERAL, model, rounds=1)))
    theirs = by_job(LoopEngine().train(jobs_of(SEVERAL, model, rounds=1)))
    exact = by_job(LoopEngine().train(jobs_of(SEVERAL, model, "fp32", rounds=1)))
    start = {name: value.cuda() for name, value in _fresh(model).items()}
    for key, reference in exact.items():
        true = moved(start, reference.snapshot.model)
        error, usual = (
            float((moved(start, found[key].snapshot.model) - true).norm() / true.norm()) for found in (ours, theirs)
        )
        assert error < max(2 * usual, 0.01), f"{key}: {error:.4f}, where the loop in bfloat16 has {usual:.4f}"


def _fresh(model: ResNet18 | CNN) -> Model:
    (job,) = jobs_of(SEVERAL[:1], model)
    return built_model(job.spec).state_dict()


def test_the_same_runs_twice_are_equal_bit_for_bit() -> None:
    first, second = (by_job(LockstepEngine().train(jobs_of(SEVERAL, ResNet18()))) for _ in range(2))
    for key, done in first.items():
        for name, value in done.snapshot.model.items():
            assert torch.equal(second[key].snapshot.model[name], value), f"{key} {name}"


def test_a_run_does_not_depend_on_the_runs_beside_it() -> None:
    together = by_job(LockstepEngine().train(jobs_of(SEVERAL[:3], ResNet18())))
    alone = by_job(LockstepEngine().train(jobs_of(SEVERAL[:1], ResNet18())))
    for name, value in alone[0, 2].snapshot.model.items():
        torch.testing.assert_close(together[0, 2].snapshot.model[name], value, rtol=1e-2, atol=2e-2)


def test_auto_takes_it_for_several_runs_of_one_seed() -> None:
    (job,) = jobs_of(SEVERAL[:1], ResNet18())
    assert choose("auto", job, {Together.SEED: 28}, SEVERAL)[0].name == "lockstep"
    assert choose("auto", job, {Together.SEED: 1}, SEVERAL)[0].name == "graphed"
