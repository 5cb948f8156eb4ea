"""AFL, agnostic federated learning: the client with the largest loss counts for more (Mohri et al., ICML 2019).

Of all mixtures lambda of the clients, the model is trained for the worst: min_w max_lambda sum_i lambda_i L_i(w). The
server averages the clients' models by lambda, and by the losses of the model that was sent

    lambda <- projection onto the simplex of  lambda + step * (L_1, ..., L_n)

It is about clients, not groups. The paper takes one gradient step a round; here clients train as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms.contract import Measure, PlainTraining, RoundReport, State, Task
from ffalm.algorithms.registry import register
from ffalm.algorithms.simplex import normalised, onto_simplex, recounted_weights
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class AFL(PlainTraining):
    """Clients with larger losses gain weight, by projected ascent. step=0 is FedAvg."""

    name = "afl"
    title = "AFL"
    paper = "Mohri, Sivek and Suresh, ICML 2019 (arXiv 1902.00146)"
    limits = "About the worst client, not about groups. The server needs each client's loss: no secure aggregation."
    server_settings = ("step",)
    remedies = "a smaller step or a smaller lr"
    measure = Measure.RECEIVED

    step: float = setting(0.1, "Step size of the clients' weights.", least=0)

    def start(self, task: Task, counts: Tensor) -> State:
        """lambda_i = n_i / n."""
        rows = counts.sum((-1, -2)).double()
        return {"client_weights": rows / rows.sum(-1, keepdim=True)}

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """A client that comes late begins as it would have from the start, with n_i / n."""
        return {"client_weights": recounted_weights(state["client_weights"], counts.sum((-1, -2)).double(), new)}

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """Average by the weights as they were sent, and ascend; a client that did not report its loss moves by 0."""
        assert report.tally is not None
        before, part = state["client_weights"], report.taking_part
        losses = torch.where(part, report.tally.mean_loss().nan_to_num(0.0), 0.0)
        after = onto_simplex(before + self.step * losses) if self.step else before
        return normalised(before * part, report.sizes.double() * part), {"client_weights": after}
