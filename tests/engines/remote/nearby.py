"""Messages and sites that tests of this room share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ffalm.engines.jobs import Job
from ffalm.engines.loop import Learner
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.engines.remote.round_messages import received, update_message


def awkward() -> dict[str, Tensor]:
    """Tensors that careless encodings lose something of."""
    return {
        "weight": torch.randn(3, 2),
        "turned": torch.randn(3, 2).T,
        "images": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "double": torch.randn(4, dtype=torch.float64),
        "half": torch.randn(4).to(torch.bfloat16),
        "dual": torch.tensor(0.25, dtype=torch.float64),
        "num_batches_tracked": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 5),
        "not finite": torch.tensor([torch.nan, torch.inf, -0.0]),
    }


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal in names, types, shapes and every bit."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


@dataclass
class Nearby:
    """Sites in this process that train a job, some of which fail as they are told."""

    job: Job
    failing: dict[int, Failure] = field(default_factory=dict)
    asked: list[tuple[Kind, list[int], float]] = field(default_factory=list)

    def present(self) -> list[int]:
        """Numbers that are not client numbers."""
        return [100 + client for client in range(len(self.job.federation.clients))]

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        """Answers in an order of their own."""
        self.asked.append((kind, list(messages), deadline))
        return {site: self.failing.get(site) or self._train(messages[site]) for site in reversed(list(messages))}

    def _train(self, message: Message) -> Message:
        client, sent, own = received(message)
        rows = self.job.federation.clients[client]
        return update_message(Learner(self.job.spec).learn(client, rows, sent, own))
