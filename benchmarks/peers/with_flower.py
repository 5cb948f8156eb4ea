"""Either study in Flower's simulation runtime: Ray, one actor a core unless told, evaluation on the server."""

from __future__ import annotations

import argparse
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import PENALTY, Ledger, Work, dual_step, gap, scores, train

client_app = ClientApp()


@cache
def _work(path: str) -> Work:
    """Loaded once in every Ray actor."""
    return Work.load(path)


@client_app.train()  # type: ignore[untyped-decorator]
def train_client(message: Message, context: Context) -> Message:
    """One client's round; the reply carries its model, its size and the gap of the two groups' losses."""
    sent = message.content["config"]
    work, client = _work(sent["work"]), int(context.node_config["partition-id"])
    part, model = work.clients[client], work.model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, part, work.orders[sent["server-round"] - 1][client], sent["dual"], sent["penalty"])
    found = {"num-examples": len(part), "gap": gap(model, part) if sent["penalty"] else 0.0}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(found)})
    return Message(content=content, reply_to=message)


class Fair(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg, which also averages the gaps, with FFALM's dual in what it sends."""

    dual = 0.0

    def configure_train(self, server_round: int, arrays: Any, config: ConfigRecord, grid: Grid) -> Any:
        """Send the dual along."""
        config["dual"] = self.dual
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Move the dual along the mean gap."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.dual += dual_step(server_round - 1) * metrics["gap"]
        return arrays, metrics


def server(path: str, ledger: Ledger, penalty: float) -> ServerApp:
    """The server of one study."""
    app, work = ServerApp(), _work(path)
    model = work.model()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        found = scores(model, work.test)
        if number:
            ledger.note(found)
        return MetricRecord(found)

    @app.main()  # type: ignore[untyped-decorator]
    def run(grid: Grid, context: Context) -> None:
        count = len(work.clients)
        strategy = Fair(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
        sent = ConfigRecord({"work": path, "penalty": penalty})
        first = ArrayRecord(work.start)
        strategy.start(grid, first, num_rounds=len(work.orders), train_config=sent, evaluate_fn=evaluate)

    return app


def main() -> None:
    """Train and write the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work")
    parser.add_argument("ledger")
    parser.add_argument("--algorithm", default="ffalm", choices=["ffalm", "fedavg"])
    parser.add_argument("--actors", type=int, help="that share the cores")
    asked = parser.parse_args()
    from with_flower import client_app  # by its module's name, so that actors import it and keep what they loaded

    ledger = Ledger(asked.ledger)
    app = server(str(Path(asked.work).resolve()), ledger, PENALTY if asked.algorithm == "ffalm" else 0.0)
    cores = len(os.sched_getaffinity(0))
    each = cores // (asked.actors or cores)
    settings = {"client_resources": {"num_cpus": each, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(app, client_app, num_supernodes=10, backend_config=settings)
    ledger.close(peer=f"Flower {version('flwr')}")


if __name__ == "__main__":
    main()
