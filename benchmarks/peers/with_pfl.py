"""Either study in pfl's `SimulatedBackend`, in one process or, started by `torch.distributed.run`, in several."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from work import BATCH, CLIP, LR, PENALTY, Ledger, Part, Work, dual_step, gap, inputs, objective, scores

GAP = StringMetricName("gap")
SEVERAL = "TORCHELASTIC_RUN_ID" in os.environ
FIRST = os.environ.get("RANK", "0") == "0"


class Classifier(nn.Module):
    """The model with the two methods that pfl asks for; the server sets the dual before each round."""

    def __init__(self, layers: nn.Module, penalty: float) -> None:
        super().__init__()
        self.layers = layers
        self.penalty = penalty
        self.dual = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.layers(x)  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor, group: Tensor) -> Tensor:
        """What local SGD minimises."""
        return objective(cross_entropy(self(inputs(x)), y, reduction="none"), group, self.dual, self.penalty)

    def metrics(self, x: Tensor, y: Tensor, group: Tensor) -> dict[str, Any]:
        """Nothing: scoring is central."""
        return {}


class Whole(PyTorchModel):  # type: ignore[misc]
    """A model whose BatchNorm statistics are averaged too; pfl's own leaves them as the last client had them."""

    def __init__(self, module: nn.Module) -> None:
        statistics = {name: held for name, held in module.named_buffers() if held.dtype.is_floating_point}
        central = torch.optim.SGD([*module.parameters(), *statistics.values()], lr=1.0)
        super().__init__(module, torch.optim.SGD, central)
        self._variable_map |= statistics


class Fair(FederatedAveraging):  # type: ignore[misc]
    """Federated averaging over the given batches, and FFALM's dual step where there is a penalty."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
        """pfl's own local SGD on rows that were put in order first; then the gap on all rows."""
        client = int(user_dataset.user_id)
        order = self._work.orders[central_context.current_central_iteration][client]
        part = self._work.clients[client]
        taken = part.take(order)
        ordered = PyTorchTensorDataset((taken.x, taken.y, taken.group), user_id=user_dataset.user_id)
        statistics, metrics = super().train_one_user(initial_model_state, model, ordered, central_context)
        if model.pytorch_model.penalty:
            metrics = metrics | Metrics([(GAP, Weighted(len(part) * gap(model.pytorch_model, part), len(part)))])
        return statistics, metrics

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Any, statistics: Any
    ) -> Any:
        """The average, and the dual's step along the mean gap."""
        if model.pytorch_model.penalty:
            step = dual_step(central_context.current_central_iteration)
            model.pytorch_model.dual += step * get_overall_value(aggregate_metrics[GAP])
        return super().process_aggregated_statistics(central_context, aggregate_metrics, model, statistics)


class Score(TrainingProcessCallback):  # type: ignore[misc]
    """Central evaluation after every round."""

    def __init__(self, test: Part, ledger: Ledger) -> None:
        self._test, self._ledger = test, ledger

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Note the round, in the first process."""
        if FIRST:
            self._ledger.note(scores(model.pytorch_model, self._test))
        return False, Metrics()


def main() -> None:
    """Train and write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("ledger")
    parser.add_argument("--algorithm", default="ffalm", choices=["ffalm", "fedavg"])
    asked = parser.parse_args()
    work, ledger = Work.load(asked.work), Ledger(asked.ledger, os.getppid() if SEVERAL else None)
    module = Classifier(work.model(), PENALTY if asked.algorithm == "ffalm" else 0.0)
    model = Whole(module)
    held = [
        PyTorchTensorDataset((part.x, part.y, part.group), user_id=str(client))
        for client, part in enumerate(work.clients)
    ]
    turns = iter(range(10**9))
    users = FederatedDataset(held.__getitem__, lambda: next(turns) % len(held))
    backend = SimulatedBackend(training_data=users, val_data=None, postprocessors=[WeightByDatapoints()])
    settings = NNAlgorithmParams(
        central_num_iterations=len(work.orders),
        evaluation_frequency=10**9,
        train_cohort_size=len(held),
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH, local_max_grad_norm=CLIP
    )
    with contextlib.redirect_stdout(io.StringIO()):
        Fair(work).run(settings, backend, model, local, callbacks=[Score(work.test, ledger)])
    if SEVERAL:
        torch.distributed.barrier()  # nobody leaves, and takes its CPU time along, before the last round is noted
    if FIRST:
        ledger.close(peer=f"pfl {version('pfl')}")


if __name__ == "__main__":
    main()
