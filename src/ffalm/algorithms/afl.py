"""AFL, agnostic federated learning: the client with the largest loss counts for more (Mohri et al., ICML 2019).

Of all mixtures lambda of the clients, the model is trained for the worst: min_w max_lambda sum_i lambda_i L_i(w). The
server averages the clients' models by lambda, and by the losses of the model that was sent

    lambda <- projection onto the simplex of  lambda + step * (L_1, ..., L_n),        lambda_i = n_i / n at first

It is about clients, not groups. The paper takes one gradient step a round; here clients train as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms.contract import Measure, RoundReport, State
from ffalm.algorithms.registry import register
from ffalm.algorithms.simplex import normalised, onto_simplex
from ffalm.algorithms.weighted_clients import WeightedClients
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class AFL(WeightedClients):
    """Clients with larger losses gain weight, by projected ascent. step=0 is FedAvg."""

    name = "afl"
    title = "AFL"
    paper = "Mohri, Sivek and Suresh, ICML 2019 (arXiv 1902.00146)"
    limits = "About the worst client, not about groups. The server needs each client's loss: no secure aggregation."
    server_settings = ("step",)
    remedies = "a smaller step or a smaller lr"
    measure = Measure.RECEIVED

    step: float = setting(0.1, "Step size of the clients' weights.", least=0)

    def update(self, state: State, report: RoundReport) -> tuple[Tensor, State]:
        """Average by the weights as they were sent, and ascend; a client that did not report its loss moves by 0."""
        assert report.tally is not None
        before, part = state["client_weights"], report.taking_part
        losses = torch.where(part, report.tally.mean_loss().nan_to_num(0.0), 0.0)
        after = onto_simplex(before + self.step * losses) if self.step else before
        return normalised(before * part, report.sizes.double() * part), {"client_weights": after}
