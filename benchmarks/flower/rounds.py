"""Seconds and bytes of a round: ffalm's Flower app against a plain Flower FedAvg app with the same local work.

    python benchmarks/flower/rounds.py --rounds 12 --repeats 2 --write

Simulation: 10 clients, Ray on all cores. Deployment: a SuperLink and 2 SuperNodes on loopback, without TLS. The apps
take turns, so that a busy machine disturbs both; the first round, in which processes start, is left out. Bytes
are those of all objects of a site's two messages of a round as Flower serialises them, with the message's own header
and its tree of object names, and without what HTTP adds to each object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from ffalm.engines.flower.engine import QUIET  # noqa: E402

PAYLOADS = {"MLP (4 thousand parameters)": "mlp", "ResNet-18's size (11 million)": "resnet18"}
APPS = {"plain": "plain_app", "fedavg": "our_app", "ffalm": "our_app"}  # ours with either algorithm


def prepare(where: Path, clients: int, payload: str, rounds: int) -> None:
    """Write a case's rows and plan."""
    import ffalm
    from ffalm.models import architecture

    federation = ffalm.load("census", clients=clients, alpha=0.3, partition="balanced", seed=0)
    for number, examples in enumerate(federation.clients):
        parts = {"x": examples.x.float(), "y": examples.y, "group": examples.group}
        np.savez(where / f"rows-{number}.npz", **{name: part.numpy() for name, part in parts.items()})
    idle = [] if payload == "mlp" else architecture(payload).build((3, 64, 64), 2).state_dict().values()
    shapes = [list(entry.shape) for entry in idle]
    plan = {"clients": clients, "rounds": rounds, "features": federation.clients[0].x.shape[1], "idle": shapes}
    (where / "plan.json").write_text(json.dumps(plan))


def simulated(app: str) -> None:
    """In a process of its own: the whole of a simulation with one app."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import logging

    import work

    if app != "plain":
        from our_app import job

        from ffalm.engines.flower.engine import FlowerEngine

        clock = work.Clock()
        for _ in FlowerEngine().train([job()]):
            clock.tick()
        return
    from flwr.simulation import run_simulation
    from plain_app import client, server

    from ffalm.engines.flower.simulated import ray_session

    logging.getLogger("flwr").setLevel(logging.CRITICAL + 1)
    plan: dict[str, Any] = work.plan()
    needs: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    with ray_session(min(len(os.sched_getaffinity(0)), plan["clients"])):
        run_simulation(server, client, plan["clients"], backend_config=needs)


def environment(where: Path, app: str, **more: str) -> dict[str, str]:
    """For every process of a case."""
    own = {
        "FLOWER_BENCHMARK": str(where),
        "FLOWER_BENCHMARK_ALGORITHM": "fedavg" if app == "fedavg" else "ffalm",
        "PYTHONPATH": os.pathsep.join([str(HERE), *(place for place in sys.path if place)]),
    }
    return {**os.environ, **QUIET, **own, **more}


def simulate(where: Path, app: str) -> None:
    """One simulation, start to end."""
    subprocess.run(
        [sys.executable, str(HERE / "rounds.py"), "--simulate", app], env=environment(where, app), check=True
    )


def deploy(where: Path, app: str) -> None:
    """One run on a SuperLink and its SuperNodes, start to end."""
    plan = json.loads((where / "plan.json").read_text())
    project = where / "app"
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    ends = f'serverapp = "{APPS[app]}:server"\nclientapp = "{APPS[app]}:client"\n'
    about = '[project]\nname = "rounds"\nversion = "0.1.0"\n[tool.flwr.app]\npublisher = "benchmark"\n'
    (project / "pyproject.toml").write_text(f"{about}[tool.flwr.app.components]\n{ends}[tool.flwr.app.config]\n")
    port = free_port()
    with started(where, app) as start:
        start("link", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
        until(lambda: listening(port))
        for number in range(plan["clients"]):
            told = ["--node-config", f"partition-id={number}", "--host", "127.0.0.1", "--port", str(free_port())]
            start(f"site-{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *told)
        (where / "link" / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        start("link", "flwr", "run", str(project), "here").wait(60)
        until(lambda: len(ends_of(where)) == plan["rounds"])


@contextmanager
def started(where: Path, app: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A way to start Flower's commands, all of which end with the block."""
    running: list[subprocess.Popen[bytes]] = []

    def start(home: str, command: str, *flags: str) -> subprocess.Popen[bytes]:
        (where / home).mkdir(exist_ok=True)
        with (where / f"{home}.log").open("ab") as log:
            called = [str(Path(sys.executable).parent / command), *flags]
            variables = environment(where, app, FLWR_HOME=str(where / home))
            running.append(subprocess.Popen(called, env=variables, stdout=log, stderr=log, start_new_session=True))
        return running[-1]

    try:
        yield start
    finally:
        for process, number in itertools.product(reversed(running), (15, 9)):
            try:
                os.killpg(process.pid, number)
                process.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def listening(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(happened: Callable[[], bool]) -> None:
    """Wait, ten minutes at most."""
    end = time.monotonic() + 600
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError("the case did not come to an end; see its logs")
        time.sleep(0.2)


def ends_of(where: Path) -> list[float]:
    """The rounds that are done."""
    try:
        found: list[float] = json.loads((where / "ends.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return found


def seconds(where: Path, run: Callable[[Path, str], None], app: str) -> list[float]:
    """What each round but the first took."""
    (where / "ends.json").unlink(missing_ok=True)
    run(where, app)
    return [after - before for before, after in itertools.pairwise(ends_of(where))]


def sizes(where: Path) -> dict[str, int]:
    """Bytes of one site's round in either app, by the very records they send."""
    os.environ.update(environment(where, "ffalm"))
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 2**63 + 1, 2**62 + 1, 1
    import our_app
    import plain_app
    import work
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as FlowerMessage

    from ffalm.engines import Snapshot
    from ffalm.engines.flower.wire import packed
    from ffalm.engines.remote.round_messages import addressed, train_message

    model = work.model().state_dict()
    algorithm = our_app.ALGORITHM
    state = algorithm.start(our_app.job().federation.counts())
    asked = {
        "plain": RecordDict({"arrays": ArrayRecord(model), "config": ConfigRecord({"server-round": 3})}),
        "ffalm": packed(addressed(train_message(Snapshot(3, model, state), algorithm), 0)),
    }
    context = Context(run_id=1, node_id=5, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    found = {}
    for app, client in (("plain", plain_app.client), ("ffalm", our_app.client)):
        there = FlowerMessage(asked[app], dst_node_id=2**63 + 5, message_type="train")
        found[app] = serialised(there) + serialised(client(there, context))
    return found


def serialised(message: Any) -> int:
    """All bytes of a message as Flower sends it, object by object."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

    objects = sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
    header = message_to_proto(remove_content_from_message(message)).ByteSize()
    return objects + header + get_object_tree(message).ByteSize()


def measured(kind: str, clients: int, title: str, asked: argparse.Namespace) -> str:
    """A line of the table."""
    run = {"simulation": simulate, "deployment": deploy}[kind]
    times: dict[str, list[float]] = {app: [] for app in APPS}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        prepare(where, clients, PAYLOADS[title], asked.rounds)
        for turn in range(asked.repeats):
            for app in list(APPS)[:: 1 if turn % 2 else -1]:
                times[app] += seconds(where, run, app)
        size = sizes(where)
    plain, fedavg, fair = (statistics.median(times[app]) for app in APPS)
    cells = [f"{kind}, {clients} clients", title, f"{plain:.2f}", f"{fedavg:.2f} ({fedavg / plain:.2f})"]
    cells += [f"{fair:.2f} ({fair / plain:.2f})", f"{size['plain']:,}"]
    cells += [f"{size['ffalm']:,} ({size['ffalm'] / size['plain']:.4f})"]
    line = f"| {' | '.join(cells)} |"
    print(line, {app: [round(value, 3) for value in found] for app, found in times.items()}, flush=True)
    return line


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=["simulation", "deployment"])
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    parser.add_argument("--simulate", choices=list(APPS), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.simulate:
        simulated(asked.simulate)
        return
    from results import machine, publish

    clients = {"simulation": 10, "deployment": 2}
    lines = [measured(kind, clients[kind], title, asked) for kind in asked.kinds for title in PAYLOADS]
    head = "| | payload | plain FedAvg, s | our FedAvg, s | our FFALM, s | plain FedAvg, bytes | our FFALM, bytes |"
    table = "\n".join([head, "|---|---|---:|---:|---:|---:|---:|", *lines])
    about = "Median seconds a round and bytes of one site's two messages, with their ratios to the plain app's."
    command = f"python benchmarks/flower/rounds.py --kinds {' '.join(asked.kinds)} --rounds {asked.rounds}"
    body = f"{about}\n`{command} --repeats {asked.repeats}`; "
    print(table)
    if asked.write:
        publish("A round through Flower", f"{body}{machine()}\n\n{table}")


if __name__ == "__main__":
    main()
