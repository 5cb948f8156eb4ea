"""Clients at the other end of a wire, as `rounds` leads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ffalm.algorithms import Algorithm
from ffalm.engines.jobs import Model, Snapshot
from ffalm.engines.loop import client_vectors
from ffalm.engines.remote.message import Failure, Message, Sites
from ffalm.engines.remote.round_messages import addressed, answered, train_message
from ffalm.engines.server import ClientUpdate, average
from ffalm.errors import UserError
from ffalm.fairness import Tally

Answers = dict[int, Message | Failure]
"""What became of a round's questions, by client number."""


def all_of_them(sent: Snapshot, answers: Answers) -> dict[int, Message]:
    """Take a round only if every client answered: what a simulation wants, where none is ever missing."""
    for client, answer in sorted(answers.items()):
        if isinstance(answer, Message):
            continue
        if answer.kind == "failed" and not answer.trace:
            raise UserError(answer.reason)
        where = f"Client {client} gave no answer in round {sent.round + 1}"
        raise RuntimeError(f"{where}: {answer.reason}\n{answer.trace}")
    return {client: answer for client, answer in answers.items() if isinstance(answer, Message)}


class RemoteClients:
    """The clients of one run, each at a site that is asked once a round.

    `order` says which site is which client as far as is known now, `begin` makes the fresh model, and `usable` decides
    which answers count, given the snapshot they answer to.
    """

    def __init__(
        self,
        sites: Sites,
        order: Callable[[], Mapping[int, int]],
        algorithm: Algorithm,
        begin: Callable[[], dict[str, Tensor]],
        deadline: float,
        validate: Callable[[dict[str, Tensor]], Tally | None] = lambda model: None,
        usable: Callable[[Snapshot, Answers], dict[int, Message]] = all_of_them,
    ) -> None:
        self._sites, self._order, self._algorithm, self._deadline = sites, order, algorithm, deadline
        self._begin, self._validate, self._usable = begin, validate, usable

    def begin(self) -> dict[str, Tensor]:
        """The freshly initialised model."""
        return self._begin()

    def validate(self, model: dict[str, Tensor]) -> Tally | None:
        """The Tally of a model on rows that are here; None where there are none."""
        return self._validate(model)

    def average(self, models: Sequence[Model], weights: Tensor) -> Model:
        """Their weighted mean."""
        return average(models, weights)

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        """One message to each chosen client, all under way at once; those whose answer is usable took part."""
        taken = self._usable(sent, self.ask(chosen, sent))
        return {client: answered(message) for client, message in sorted(taken.items())}

    def ask(self, chosen: Sequence[int], sent: Snapshot) -> Answers:
        """What each chosen client answers, whatever it is; a client of no known site counts as lost."""
        known = self._order()
        message = train_message(sent, self._algorithm)
        messages = {
            known[client]: addressed(message, client, client_vectors(sent, client))
            for client in chosen
            if client in known
        }
        answers = self._sites.ask("train", messages, self._deadline)
        absent = Failure("lost", "The site is not connected.")
        return {client: answers[known[client]] if client in known else absent for client in chosen}
