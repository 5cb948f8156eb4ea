"""The second training of a federation whose answer may use a blind rule: a model of P(label, group | x).

It is FedAvg over the same sites, rules and settings, secure where the first was, with (favourable or not, group) as the
label: what `ffalm.group_model` trains in a simulation. The folder `groups` in the run's has its checkpoints, its
history and in the end the model. Sites send nothing about their held-out rows in its rounds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save

from ffalm import config as study
from ffalm.engines import Snapshot
from ffalm.engines.common import built_model, trained_parameters
from ffalm.engines.jobs import Model
from ffalm.engines.remote.message import Sites
from ffalm.engines.server import ServerContext, rounds
from ffalm.errors import UserError
from ffalm.federate.coordinator.federation_report import absences
from ffalm.federate.coordinator.group_members import GroupMembers
from ffalm.federate.coordinator.introductions import Say
from ffalm.federate.coordinator.members import Members
from ffalm.federate.coordinator.site_clients import SiteClients
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.secure.first_asked import FirstAsked
from ffalm.federate.secure.secure_clients import SecureClients
from ffalm.federate.secure.secure_rounds import secure_round
from ffalm.studies.store import RunFolder
from ffalm.system import toml
from ffalm.system.files import write_atomic
from ffalm.trained_models.trained_model import ENCODING, MODEL

FOLDER = "groups"


class GroupTraining:
    """The second training; afterwards its `clients` answer the questions of the search."""

    def __init__(
        self, config: FederationConfig, run: Path, sites: Sites, members: Members, say: Say, pause: float
    ) -> None:
        self._config = replace(config, contender=study.entry_of("fedavg", {}), target=None, repair="groups")
        self._folder, self._members, self._say = RunFolder(run / FOLDER), members, say
        self._seen = GroupMembers(members)
        self._folder.start(toml.dumps(self._config.settings()))
        self._done = self._folder.saved_rounds()[-1]
        terms = members.agreed.terms(config.sites[0], config).of_groups
        if self._done == 0:
            terms = replace(terms, model=config.model)
        fresh = built_model(terms.client_spec(torch.device("cpu")))
        self._trained = trained_parameters(fresh)
        begin = {name: value.detach() for name, value in fresh.state_dict().items()}
        kind = SiteClients if config.secure is None else SecureClients
        self.clients = kind(sites, members, self._config, begin, self._trained, say, pause, self._seen)
        if isinstance(self.clients, SecureClients):
            self.clients.first = FirstAsked(self._folder.path)

    def run(self) -> Model:
        """Train the remaining rounds; the final model."""
        total, now = self._config.training.rounds, self._folder.snapshot(self._done)
        self._folder.history(self._done)
        while now is None or now.round < total:
            now = self._round(now)
            self._folder.save(now)
            self._members.settle()
        self._seen.agreed.save(self._folder.path / ENCODING)
        write_atomic(self._folder.path / MODEL, save({name: one.contiguous() for name, one in now.model.items()}))
        return now.model

    def notes(self) -> list[str]:
        """Notes on the rounds that sites missed, and on answers that did not count."""
        return [f"Training of the model of the groups: {note}" for note in absences(self._folder.history())]

    def _round(self, now: Snapshot | None) -> Snapshot:
        config, clients = self._config, self.clients
        context = ServerContext(
            config.algorithm, config.training, self._seen.agreed.task, self._seen.rows(), config.seed,
            self._trained, now, None, holds_client_vectors=False,
        )  # fmt: skip
        done = secure_round(context, clients) if isinstance(clients, SecureClients) else next(rounds(context, clients))
        if done.diverged:
            raise UserError(
                f"The training of the model of the groups, which a blind rule needs, diverged: {done.diverged} Set "
                'repair = "single" in federation.toml, and run again.',
                "The training of the model of the groups diverged.",
            )
        answered = list(clients.scored.sites)
        seen = {"answered": answered, "missed": clients.missed, "quarantined": clients.quarantined}
        self._folder.append({**done.record, **seen})
        self._say(
            "training",
            f"Model of the groups, round {done.snapshot.round} of {config.training.rounds}: {', '.join(answered)} took "
            "part.",
        )
        return done.snapshot
