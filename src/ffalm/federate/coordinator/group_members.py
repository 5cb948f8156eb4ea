"""The members of a federation as clients of its second training, of a model of the groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.coordinator.members import Members
from ffalm.federate.coordinator.update_validation import PARTS, Counts
from ffalm.federate.terms import group_run


@dataclass(frozen=True)
class GroupMembers:
    """The members in the training of a model of the groups: with other labels, and all cells withheld."""

    members: Members

    @property
    def run(self) -> str:
        """The name of the second training."""
        return group_run(self.members.run)

    @property
    def agreed(self) -> Agreement:
        """The agreement with the labels of that training."""
        return replace(self.members.agreed, task=self.members.agreed.task.with_group_labels())

    @property
    def counts(self) -> dict[str, Counts]:
        """Each member's number of rows, with all cells withheld."""
        task = self.agreed.task
        nobody = torch.zeros(task.labels, task.groups, dtype=torch.int64)
        told, hidden = dict.fromkeys(PARTS, nobody), dict.fromkeys(PARTS, torch.ones_like(nobody, dtype=torch.bool))
        return {site: Counts(one.rows, told, hidden) for site, one in self.members.counts.items()}

    def rows(self) -> Tensor:
        """Training rows per (client, label, group); FedAvg only needs each client's sum."""
        task, of_clients = self.agreed.task, self.members.rows().sum((-1, -2))
        rows = torch.zeros(len(of_clients), task.labels, task.groups, dtype=torch.int64)
        rows[:, 0, 0] = of_clients
        return rows
