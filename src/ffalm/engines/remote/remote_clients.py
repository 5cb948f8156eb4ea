"""Clients in other processes, in a simulation, where none is ever missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ffalm.data.types import Examples
from ffalm.engines.jobs import ClientSpec, Model, Snapshot
from ffalm.engines.loop import Learner, client_vectors
from ffalm.engines.remote.message import Fact, Failure, Message, Sites
from ffalm.engines.remote.round_messages import addressed, answered, train_message
from ffalm.engines.server import Clients, ClientUpdate
from ffalm.errors import UserError
from ffalm.fairness import Tally


class RemoteClients(Clients):
    """The clients of one run, each at a site that is asked once a round; the run fails unless all answer.

    `order` is the site of each client, `validation` the rows that are scored here, `about` facts in every question.
    """

    def __init__(
        self,
        spec: ClientSpec,
        sites: Sites,
        order: Mapping[int, int],
        deadline: float = math.inf,
        validation: Examples | None = None,
        about: Mapping[str, Fact] | None = None,
    ) -> None:
        self._learner, self._algorithm = Learner(spec), spec.algorithm
        self._sites, self._order, self._deadline, self._about = sites, order, deadline, about or {}
        self._validation = None if validation is None else validation.to(spec.device)

    def begin(self) -> Model:
        """The freshly initialised model, in main memory."""
        return {name: value.cpu() for name, value in self._learner.fresh().items()}

    def validate(self, model: Model) -> Tally | None:
        """The Tally of a model on the validation rows, if there are any here."""
        return None if self._validation is None else self._learner.score(model, self._validation)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One message to each chosen client, sent together."""
        plain = train_message(sent, self._algorithm)
        message = replace(plain, facts={**plain.facts, **self._about})
        messages = {self._order[client]: addressed(message, client, client_vectors(sent, client)) for client in chosen}
        answers = self._sites.ask("train", messages, self._deadline)
        return {client: answered(_given(answers[self._order[client]], client, sent)) for client in sorted(chosen)}


def _given(answer: Message | Failure, client: int, sent: Snapshot) -> Message:
    """The answer; raises if there is none, with the client's own message if it is for the user."""
    if isinstance(answer, Message):
        return answer
    if answer.kind == "failed" and not answer.trace:
        raise UserError(answer.reason)
    where = f"Client {client} gave no answer in round {sent.round + 1}"
    raise RuntimeError(f"{where}: {answer.reason}\n{answer.trace}")
