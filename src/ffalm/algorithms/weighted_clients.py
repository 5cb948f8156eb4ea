"""Weights of clients that the server moves: the base of methods that only average differently."""

from __future__ import annotations

from torch import Tensor

from ffalm.algorithms.contract import PlainTraining, State, Task
from ffalm.algorithms.simplex import recounted_weights


class WeightedClients(PlainTraining):
    """Plain training; models are averaged by the entry `client_weights` of the state, which a subclass moves."""

    def start(self, task: Task, counts: Tensor) -> State:
        """n_k / n."""
        rows = counts.sum((-1, -2)).double()
        return {"client_weights": rows / rows.sum(-1, keepdim=True)}

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """A client that comes late begins as it would have from the start, with n_k / n."""
        return {"client_weights": recounted_weights(state["client_weights"], counts.sum((-1, -2)).double(), new)}
