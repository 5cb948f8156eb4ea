"""The terms that a site gets once everything is agreed: all it needs to train and score, and nothing about other sites.

A site keeps the text in its folder, since each question is answered by a new process. Every question has the key of
the terms, so that no site trains by outdated ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import torch

from ffalm import config as study
from ffalm.algorithms import algorithms
from ffalm.config import AlgorithmEntry
from ffalm.data.types import Task
from ffalm.engines import ClientSpec, Training
from ffalm.errors import PublicError, UserError, require, short_repr
from ffalm.federate.federation_config import SharedData
from ffalm.federate.secure.secure_settings import Secure
from ffalm.models import Architecture, from_scratch
from ffalm.run_settings import Privacy
from ffalm.settings import build, to_plain
from ffalm.simulation import ArchitectureFactory
from ffalm.system.files import parsed_json
from ffalm.targets.target import Repair

NO_CELL = 2**40  # a `min_group` that no cell reaches
GROUPS = "groups"
"""The fact "of" in every question about the model of the groups and the blind rule."""

_SECOND = " groups"


def group_run(run: str) -> str:
    """The name of the second training of a run."""
    return f"{run}{_SECOND}"


def first_run(run: str) -> str:
    """The name of the run that a training belongs to."""
    return run.removesuffix(_SECOND)


@dataclass(frozen=True)
class SiteTerms:
    """The terms of one site, which is one client."""

    client: int
    task: Task
    data: SharedData
    encoding: str | None  # a table's encoding as it is saved
    shape: tuple[int, ...]  # of one encoded row
    model: Architecture
    training: Training
    contender: AlgorithmEntry
    seed: int
    min_group: int
    target: str | None = None  # the fairness target; with one, the site sends score histograms at the end
    secure: Secure | None = None  # if the coordinator only sees sums
    privacy: Privacy | None = None  # if sites bound their numbers and add noise themselves
    run: str = ""  # a name that no other run has; sites answer each question of a run once
    sites: tuple[str, ...] = ()  # under `secure` all names, by client: no site can go by another's number
    repair: Repair | None = None  # the thresholds that a site fits for itself and keeps, with a target for sites
    confidence: float = 0.5  # with which its held-out gaps must be within the target
    blind: bool = False  # whether the answer may use a blind rule: then a model of the groups is trained after the run

    @property
    def of_groups(self) -> SiteTerms:
        """The terms of the second training, of a model of the groups: FedAvg on the same rows, labelled by group.

        In its rounds no held-out rows are reported: every cell is too small. Its questions and sums have another name.
        """
        return replace(
            self,
            task=self.task.with_group_labels(),
            contender=study.entry_of("fedavg", {}),
            run=group_run(self.run),
            min_group=NO_CELL,
        )

    @property
    def model_factory(self) -> ArchitectureFactory:
        """A function that makes a fresh model."""
        return ArchitectureFactory(self.model, self.shape, self.task.labels)

    def client_spec(self, device: torch.device) -> ClientSpec:
        """The local training under these terms."""
        own = self.contender.algorithm, self.model_factory, self.training, self.task, self.seed
        return ClientSpec(*own, device)

    def to_text(self) -> str:
        """As text for the wire and the site's folder."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_text(cls, text: str) -> SiteTerms:
        """The terms that `to_text` wrote."""
        try:
            values = {"encoding": None, **parsed_json(text)}  # to_plain leaves it out if it is None
            name = values["contender"]["name"]
            require(
                name in algorithms(),
                f"The federation trains by {short_repr(name)}, an algorithm that this site does not know: list the "
                "file that registers it under 'plugins' in site.toml, or install the coordinator's version of ffalm.",
            )
            algorithm = study.entry_of(name, values["contender"])
            given = study.section(values, "model")
            model = from_scratch(study.model_of(given))  # a coordinator must not make a site read a file
            return build(cls, {**values, "model": model, "contender": algorithm}, "terms")
        except UserError as error:  # the text came from the coordinator, so nothing in the message is the site's
            raise PublicError(str(error)) from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise PublicError(
                f"The terms of the federation cannot be read ({type(error).__name__}): use the same ffalm everywhere."
            ) from None

    @property
    def key(self) -> str:
        """A fingerprint of these terms."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()[:16]

    @property
    def common_key(self) -> str:
        """A fingerprint of these terms without the client's number, the same for all sites of a run."""
        return replace(self, client=0).key

    @property
    def run_key(self) -> str:
        """A fingerprint of what cannot change during a run: rounds, rules and the target may."""
        training = replace(self.training, rounds=1)
        aim: dict[str, Any] = {"target": None, "repair": None, "confidence": 0.5, "blind": False}
        return replace(self, training=training, min_group=0, secure=None, sites=(), **aim).key
