"""The lockstep engine: all runs of one seed take each training step together, whatever their algorithms.

Runs that are compared on one federation train on the same batches; only their objectives differ. So their models are
lanes of one tensor: a layer is one kernel for all of them, which fills a large GPU where a small network alone leaves
most of it idle. Batches are the same in all lanes, so that BatchNorm sees exact ones. On a GPU it computes in bfloat16
by kernels of its own; on a CPU in torch operations, in the model's own precision, as a reference for tests.

The same runs give the same bits each time. With other runs beside it, a run's last bits are others, since sums of
gradients are cut by the number of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import nn

from ffalm.algorithms import Algorithm
from ffalm.engines.common import built_model, dtype_of
from ffalm.engines.jobs import Engine, Job, Round, Together
from ffalm.engines.lockstep.lane_stack import LaneStack
from ffalm.engines.lockstep.layer_graph import Unreadable, read_layers
from ffalm.engines.lockstep.layers import Layers
from ffalm.engines.lockstep.torch_layers import TorchLayers
from ffalm.engines.objective_trial import why_not_together
from ffalm.engines.optimizers import local_optimizer
from ffalm.engines.prepared_jobs import PreparedJob, grouped, prepare_job, same_function
from ffalm.engines.stacked.choose import values_per_row
from ffalm.errors import require
from ffalm.system.memory import free, give_back

_SPARED = 0.2  # of the free memory, for what no estimate knows
_MODELS = 4  # copies of a lane's model beside those of its clients: global, trained, gradient, and what passes read
_BFLOAT16 = 8  # the first generation of GPUs (compute capability) that multiplies it
_PASSES = 3  # times that a row's values are held: after layers, after normalisations, and gradients on the way back


class LockstepEngine(Engine):
    """Runs of one seed computed together."""

    name: ClassVar[str] = "lockstep"
    together: ClassVar[Together] = Together.SEED
    spreads: ClassVar[bool] = False

    @classmethod
    def lacks(cls, algorithm: Algorithm) -> str | None:
        """A step is a gradient of losses or logits, and the server takes weighted means."""
        if algorithm.only_averages and not algorithm.gradients and not algorithm.products:
            return None
        return (
            f"{algorithm.title} needs more of clients or server than weighted means of models, which is all that the "
            "engine 'lockstep' computes: use another engine."
        )

    def refusal(self, job: Job) -> str | None:
        """Other optimizers than plain SGD, privacy, other precisions on a GPU, layers that lanes cannot share."""
        return _refused_settings(job) or _refused_model(job, built_model(job.spec))

    def train(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Round]]:
        """Jobs of one seed together, one seed after the other."""
        for job in jobs:
            reason = _refused_settings(job)
            require(reason is None, str(reason))
        for alike in grouped([prepare_job(number, job) for number, job in enumerate(jobs)], _alike):
            reason = _refused_model(alike[0].job, alike[0].model)
            require(reason is None, str(reason))
            layers = _layers(alike[0].job)
            lanes = most_lanes(alike[0])
            for first in range(0, len(alike), lanes):
                yield from LaneStack(alike[first : first + lanes], layers).rounds()
                give_back(alike[0].job.spec.device)


def why_not_lockstep(model: nn.Module, by_kernels: bool) -> str | None:
    """Why copies of a model cannot run in lanes, as the rest of a sentence; None if nothing speaks against it."""
    try:
        first = read_layers(model).first_layers
    except Unreadable as reason:
        return str(reason)
    for name, module in model.named_modules():
        odd = isinstance(module, nn.Conv2d) and (
            module.out_channels % 16 or (module.in_channels % 16 and name not in first)
        )
        if by_kernels and odd:
            return f"the channels of its convolution {name!r} are no multiple of 16"
    return None


def most_lanes(one: PreparedJob) -> int:
    """How many jobs like this one the free memory of its device holds at a time; at least one."""
    spec, federation = one.job.spec, one.job.federation
    left = free(spec.device, one.job.processes)
    if left is None:
        return 1024
    numbers: int = sum(entry.numel() for entry in one.model.state_dict().values())
    rows = max(spec.training.batch_size or max(map(len, federation.row_views)), 1)
    passed = values_per_row(one.model, federation.first_rows(1).x) * rows * _PASSES
    width = 2 if spec.precision == "bf16" else dtype_of(one.model).itemsize
    lane = (len(federation.row_views) + _MODELS) * numbers * dtype_of(one.model).itemsize + passed * width
    return max(1, int(left * (1 - _SPARED) / lane))


def _refused_model(job: Job, model: nn.Module) -> str | None:
    reason = why_not_lockstep(model, job.spec.device.type == "cuda")
    return None if reason is None else f"The model cannot be run in lanes: {reason}; use engine='graphed' or 'loop'."


def _refused_settings(job: Job) -> str | None:
    """What of a job is refused whatever its model."""
    missing = LockstepEngine.lacks(job.spec.algorithm)
    missing = missing or why_not_together(job.spec.algorithm, job.federation)
    if missing is not None:
        return missing
    if not local_optimizer(job.spec.training).plain:
        return "The engine 'lockstep' trains by plain SGD: use another engine for momentum, Adam or weight decay."
    if job.privacy is not None:
        return "The engine 'lockstep' adds no noise for differential privacy: use another engine."
    return _refused_device(job)


def _refused_device(job: Job) -> str | None:
    spec = job.spec
    if spec.device.type == "cpu":
        wrong = spec.precision == "bf16"
        return "The engine 'lockstep' computes in bfloat16 on a GPU only: use precision 'fp32'." if wrong else None
    if spec.precision != "bf16":
        return "The engine 'lockstep' computes in bfloat16 on a GPU: use precision 'bf16', or engine='graphed'."
    if torch.cuda.get_device_capability(spec.device)[0] < _BFLOAT16:
        return "This GPU has no products in bfloat16, which the engine 'lockstep' needs: use engine='graphed'."
    if find_spec("triton") is None:
        return "The engine 'lockstep' needs triton on a GPU, which comes with torch on Linux: use engine='graphed'."
    from ffalm.engines.lockstep.triton_layers import why_not_compiled

    reason = why_not_compiled(spec.device)
    return None if reason is None else f"Triton cannot compile here ({reason}): use engine='graphed'."


def _layers(job: Job) -> Layers:
    if job.spec.device.type == "cpu":
        return TorchLayers()
    from ffalm.engines.lockstep.triton_layers import TritonLayers

    return TritonLayers()


def _alike(first: PreparedJob, second: PreparedJob) -> bool:
    """Whether two jobs train on the same batches of the same rows, from the same round on."""
    a, b = first.job.spec, second.job.spec
    return (
        first.job.federation is second.job.federation
        and (a.seed, a.device, a.precision) == (b.seed, b.device, b.precision)
        and a.training == b.training
        and first.start.round == second.start.round
        and same_function(first.model, second.model)
    )


__all__ = ["LockstepEngine", "why_not_lockstep"]
