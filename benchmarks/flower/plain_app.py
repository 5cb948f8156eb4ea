"""A plain Flower app: FedAvg as Flower ships it, and local SGD in a few lines of torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

client = ClientApp()
server = ServerApp()
_rows = cache(work.rows)  # a simulation's processes go on from round to round


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch over the client's rows."""
    torch.set_num_threads(1)
    x, y, _ = _rows(int(context.node_config["partition-id"]))
    model = work.model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    used = list(model.layers.parameters())
    optimizer = torch.optim.SGD(used, work.LR)
    total = 0.0
    steps = torch.randperm(len(x)).split(work.BATCH)
    for step in steps:
        optimizer.zero_grad()
        loss = cross_entropy(model(x[step]), y[step])
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(used, work.CLIP)
        optimizer.step()
        total += loss.item()
    found = MetricRecord({"num-examples": len(x), "train_loss": total / len(steps)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": found}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's own strategy, from beginning to end; it calls `evaluate_fn` when a round is done."""
    plan: dict[str, Any] = work.plan()
    clock = work.Clock()

    def evaluated(number: int, arrays: ArrayRecord) -> None:
        if number:
            clock.tick()

    count = plan["clients"]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
    first = ArrayRecord(work.model().state_dict())
    strategy.start(grid, first, num_rounds=plan["rounds"], train_config=ConfigRecord(), evaluate_fn=evaluated)
