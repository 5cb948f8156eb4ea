"""Either study in declearn: server and clients as coroutines of one process over loopback websockets, as its
`quickrun` does. FedAvg only: a client's batches reach its model without their groups, so FFALM has no place.

declearn looks for messages once a second; here it looks every 2 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from declearn.aggregator import AveragingAggregator
from declearn.communication import NetworkClientConfig, NetworkServerConfig
from declearn.dataset import Dataset, DataSpecs
from declearn.main import FederatedClient, FederatedServer
from declearn.main.config import FLOptimConfig, FLRunConfig
from declearn.model.torch import TorchModel, TorchVector
from declearn.utils import set_device_policy
from work import BATCH, CLIP, LR, Ledger, Part, Work, inputs, scores


class Ordered(Dataset):  # type: ignore[misc]
    """A client's rows, each round in its given order."""

    typekey: ClassVar[str] = "ordered"

    def __init__(self, part: Part, orders: list[torch.Tensor]) -> None:
        self.part = part
        self._orders = iter(orders)

    def get_data_specs(self) -> DataSpecs:
        """The number of rows."""
        return DataSpecs(n_samples=len(self.part))

    def generate_batches(self, batch_size: int, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """One round's batches."""
        for rows in torch.split(next(self._orders), batch_size):
            yield inputs(self.part.x[rows]), self.part.y[rows], None


class Whole(TorchModel):  # type: ignore[misc]
    """A model whose BatchNorm statistics are averaged too; declearn's own keeps them where they arose."""

    typekey: ClassVar[str] = "whole-torch"

    def get_weights(self, trainable: bool = False) -> TorchVector:
        """A copy of parameters and statistics."""
        return TorchVector({name: value.clone() for name, value in self._held().items()})

    def set_weights(self, weights: TorchVector, trainable: bool = False) -> None:
        """Take parameters and statistics."""
        for name, value in self._held().items():
            value.copy_(weights.coefs[name])

    def apply_updates(self, updates: TorchVector) -> None:
        """Add to those that the updates name: parameters in a step, statistics too in an average."""
        held = self._held()
        for name, value in updates.coefs.items():
            held[name].add_(value)

    def _held(self) -> dict[str, torch.Tensor]:
        state = self._raw_model.state_dict()
        return {name: value.detach() for name, value in state.items() if value.dtype.is_floating_point}


class BySize(AveragingAggregator):  # type: ignore[misc]
    """The mean by rows; declearn's own is by steps."""

    name: ClassVar[str] = "by-size"
    rows = 0

    def prepare_for_sharing(self, updates: Any, n_steps: int) -> Any:
        """Weigh by the rows that the client set."""
        return super().prepare_for_sharing(updates, self.rows)


class Client(FederatedClient):  # type: ignore[misc]
    """A client that tells its aggregator how many rows it has."""

    async def initialize(self) -> None:
        """As declearn's, and then the number of rows."""
        await super().initialize()
        self.trainmanager.aggrg.rows = len(self.train_data.part)


class Server(FederatedServer):  # type: ignore[misc]
    """A server that scores the model itself."""

    test: Part
    ledger: Ledger

    async def evaluation_round(self, *args: Any, **kwargs: Any) -> None:
        """Score, and note the round."""
        self.ledger.note(scores(self.model.get_wrapped_model(), self.test))


def server(work: Work, ledger: Ledger, port: int) -> Server:
    """The server of one study."""
    network = NetworkServerConfig.from_params(protocol="websockets", host="127.0.0.1", port=port, heartbeat=0.002)
    clipped = {"lrate": LR, "modules": [("l2-global-clipping", {"max_norm": CLIP})]}
    optim = FLOptimConfig.from_params(client_opt=clipped, server_opt=1.0, aggregator=BySize())
    made = Server(Whole(work.model(), torch.nn.CrossEntropyLoss()), network, optim)
    made.test, made.ledger = work.test, ledger
    return made


async def study(work: Work, ledger: Ledger) -> None:
    """Server and clients side by side."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count = len(work.clients)
    clients = []
    for number, part in enumerate(work.clients):
        network = NetworkClientConfig.from_params(
            protocol="websockets", server_uri=f"ws://127.0.0.1:{port}", name=str(number)
        )
        data = Ordered(part, [order[number] for order in work.orders])
        clients.append(Client(network, data, verbose=False))
    config = FLRunConfig.from_params(
        rounds=len(work.orders),
        register={"min_clients": count, "max_clients": count},
        training={"batch_size": BATCH, "n_epoch": 1, "drop_remainder": False},
        evaluate={"batch_size": BATCH},
    )
    waiting = asyncio.gather(*(client.async_run() for client in clients), return_exceptions=True)
    await server(work, ledger, port).async_run(config)
    await waiting  # a server that is done may hang up on clients that still read its last, large message


def main() -> None:
    """Train and write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("ledger")
    parser.add_argument("--algorithm", default="fedavg", choices=["fedavg"])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    set_device_policy(gpu=False)
    ledger = Ledger(asked.ledger)
    asyncio.run(study(Work.load(asked.work), ledger))
    ledger.close(peer=f"declearn {version('declearn')}")


if __name__ == "__main__":
    main()
