"""Clients at the other end of a wire, as `rounds` leads them where none is ever missing: in a simulation."""

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
    """The clients of one run, each at a site that is asked once a round; a round ends the run unless all answer.

    `order` is the site of each client, `validation` the rows that are scored here, and every question says `about`.
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
        """The freshly initialised model, in main memory as answers are."""
        return {name: value.cpu() for name, value in self._learner.fresh().items()}

    def validate(self, model: Model) -> Tally | None:
        """The Tally of a model on the rows that are here."""
        return None if self._validation is None else self._learner.score(model, self._validation)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One message to each chosen client, all under way at once."""
        plain = train_message(sent, self._algorithm)
        message = replace(plain, facts={**plain.facts, **self._about})
        messages = {self._order[client]: addressed(message, client, client_vectors(sent, client)) for client in chosen}
        answers = self._sites.ask("train", messages, self._deadline)
        return {client: answered(_given(answers[self._order[client]], client, sent)) for client in sorted(chosen)}


def _given(answer: Message | Failure, client: int, sent: Snapshot) -> Message:
    """An answer; raises where there is none, in the client's own words where those are for the user."""
    if isinstance(answer, Message):
        return answer
    if answer.kind == "failed" and not answer.trace:
        raise UserError(answer.reason)
    where = f"Client {client} gave no answer in round {sent.round + 1}"
    raise RuntimeError(f"{where}: {answer.reason}\n{answer.trace}")
