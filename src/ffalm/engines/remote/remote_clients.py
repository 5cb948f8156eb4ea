"""Clients at the other end of a wire, as `rounds` leads them where none is ever missing: in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ffalm.algorithms import Algorithm
from ffalm.engines.jobs import Model, Snapshot
from ffalm.engines.loop import client_vectors
from ffalm.engines.remote.message import Failure, Message, Sites
from ffalm.engines.remote.round_messages import addressed, answered, train_message
from ffalm.engines.server import ClientUpdate, average
from ffalm.errors import UserError
from ffalm.fairness import Tally


@dataclass(frozen=True)
class RemoteClients:
    """The clients of one run, each at a site that is asked once a round; a round ends the run unless all answer."""

    sites: Sites
    order: Mapping[int, int]  # the site of each client
    algorithm: Algorithm
    begin: Callable[[], Model]  # the freshly initialised model
    deadline: float
    validate: Callable[[Model], Tally | None] = lambda model: None  # the Tally of a model on rows that are here

    def average(self, models: Sequence[Model], weights: Tensor) -> Model:
        """Their weighted mean."""
        return average(models, weights)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One message to each chosen client, all under way at once."""
        message = train_message(sent, self.algorithm)
        messages = {self.order[client]: addressed(message, client, client_vectors(sent, client)) for client in chosen}
        answers = self.sites.ask("train", messages, self.deadline)
        return {client: answered(_given(answers[self.order[client]], client, sent)) for client in sorted(chosen)}


def _given(answer: Message | Failure, client: int, sent: Snapshot) -> Message:
    """An answer; raises where there is none, in the client's own words where those are for the user."""
    if isinstance(answer, Message):
        return answer
    if answer.kind == "failed" and not answer.trace:
        raise UserError(answer.reason)
    where = f"Client {client} gave no answer in round {sent.round + 1}"
    raise RuntimeError(f"{where}: {answer.reason}\n{answer.trace}")
