"""Machines that die in the middle of a round: the training goes on, and comes to the numbers it would have come to."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from tests.federate.deploy.machines import PATIENCE, Machines, assert_equals_simulation, kill, until

from ffalm.federate.deploy.site_node import LET_IN

pytestmark = pytest.mark.slow


def _training(machines: Machines, site: str, times: int) -> bool:
    """Whether a site has been asked to train so often, and has not answered the last time."""
    said = machines.site(site).process.log.read_text()
    return said.count("Asked: train") >= times and said.count("Asked: train") > said.count("Answered: train")


def _over(run: subprocess.Popen[str]) -> bool:
    """Whether a run has ended, which it must not have here."""
    assert run.poll() is None, run.communicate()
    return False


def test_a_site_killed_in_a_round_is_missed_and_comes_back(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "60", "--set", "rules.deadline=12.0", "--set", "rules.patience=15.0")
    machines.bring_up()
    run = machines.background("run", machines.path)
    until(lambda: _training(machines, "west", 2) or _over(run), "west trains in round 2")
    kill(machines.site("west").process)
    until(lambda: len(machines.history()) >= 4 or _over(run), "three rounds go on without it")
    code, _, said = machines.ffalm("site", machines.folder.site("west"), "--detach")
    assert code == 0, said
    out, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, said
    history = machines.history()
    assert all("west" not in record["answered"] for record in history[1:4])
    assert history[0]["answered"] == history[-1]["answered"] == ["north", "south", "west"]
    assert "The site 'west' missed" in " ".join(out.split())
    assert_equals_simulation(machines)


BAD = """
import time
from dataclasses import replace
from ffalm.federate.site.answering import LocalSite

honest = LocalSite.train

def train(self, asked):
    reply, number = honest(self, asked), asked.facts["round"] + 1
    model = dict(reply.tensors["model"])
    name = sorted(model)[0]
    if number == 2:
        model[name] = model[name] * float("nan")
    elif number == 3:
        model[name] = model[name] + float("inf")
    elif number == 4:
        model[name] = model[name][..., :1]
    elif number == 5:
        model[name] = model[name] + 1e6
    elif number == 6:
        time.sleep(16)
    return replace(reply, tensors={**reply.tensors, "model": model})

LocalSite.train = train
"""


def test_a_site_that_answers_nonsense_or_too_late_is_left_out_and_named(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "9", "--set", "rules.deadline=12.0", "--set", "rules.patience=15.0")
    west = machines.folder.site("west")
    (west / "bad.py").write_text(BAD)
    honest = (west / "site.toml").read_text()
    (west / "site.toml").write_text(honest.replace("plugins = []", 'plugins = ["bad.py"]'))
    machines.bring_up()
    code, out, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    history = machines.history()
    reasons = [record["quarantined"].get("west", "") for record in history]
    assert "not finite" in reasons[1] and "not finite" in reasons[2]
    assert "shape" in reasons[3]
    assert "others" in reasons[4]
    assert history[5]["missed"]["west"].startswith("late")
    assert all(record["answered"] == ["north", "south"] for record in history[1:6])
    assert history[0]["answered"] == history[-1]["answered"] == ["north", "south", "west"]
    assert "west" in out
    (west / "site.toml").write_text(honest)  # the simulation reads it too
    assert_equals_simulation(machines)


LYING = """
import hashlib
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, ObjectTree
from flwr.proto.node_pb2 import Node
from ffalm.federate.deploy import site_node
from ffalm.federate.deploy.bundle import GIVE, exchange, numbered
from ffalm.federate.deploy.fleet_client import FleetClient

honest, rounds = FleetClient.give, 0

def give(self, run, answer, seconds):
    global rounds
    head = Message.FromString(answer.message)
    rounds += head.metadata.message_type == "train"
    if head.metadata.message_type != "train" or rounds not in (2, 4):
        return honest(self, run, answer, seconds)
    if rounds == 2:
        content = b"Message  10\\x00no message"
        number = head.metadata.message_id = hashlib.sha256(content).hexdigest()
        tree = ObjectTree(object_id=number).SerializeToString()
        answer = answer._replace(message=head.SerializeToString(), tree=tree, objects={number: content})
        return honest(self, run, answer, seconds)
    request = PushMessagesRequest(
        node=Node(node_id=self.node),
        messages_list=[head],
        message_object_trees=[ObjectTree.FromString(answer.tree)],
        clientapp_runtime_list=[seconds],
    )
    exchange(self._bundles, GIVE, [request.SerializeToString(), *numbered(answer.objects)[2:]])

FleetClient.give = give
if __name__ == "__main__":
    site_node.main()
"""


def test_a_site_that_sends_no_message_or_half_of_one_is_left_out_and_named(machines: Machines) -> None:
    machines.init("--sites", "3", "--rounds", "5", "--set", "rules.deadline=12.0", "--set", "rules.patience=15.0")
    machines.bring_up()
    machines.site("west").process.stop()
    west = machines.folder.site("west")
    (west / "lying.py").write_text(LYING)
    host, port = machines.folder.address
    lying = machines.stranger(west, [sys.executable, str(west / "lying.py"), str(west), f"{host}:{port}"])
    until(lambda: LET_IN in lying.log.read_text(), "west is let in")
    code, out, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    history = machines.history()
    everyone = ["north", "south", "west"]
    assert [record["answered"] for record in history] == [everyone, everyone[:2], everyone, everyone[:2], everyone]
    assert "its answer cannot be read (DecodeError" in history[1]["quarantined"]["west"]
    assert history[3]["missed"] == {"west": "late: The site did not answer within 12 seconds."}
    assert "west" in out
    assert_equals_simulation(machines)


def test_a_coordinator_killed_in_a_round_goes_on_where_it_was(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "20")
    machines.bring_up()
    run = machines.background("run", machines.path)
    until(
        lambda: (len(machines.history()) >= 2 and _training(machines, "north", 3)) or _over(run),
        "north trains in round 3",
    )
    kill(machines.coordinator.process)
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2
    assert "The coordinator stopped, and the rounds so far are kept" in said
    kept = len(machines.history())
    assert 2 <= kept < 20
    code, _, said = machines.ffalm("coordinator", machines.path, "--detach")
    assert code == 0, said
    code, _, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    assert [record["round"] for record in machines.history()] == list(range(1, 21))
    assert_equals_simulation(machines)


def test_too_few_sites_stop_the_training_with_one_sentence_and_more_let_it_go_on(machines: Machines) -> None:
    machines.init("--sites", "2", "--rounds", "20", "--set", "rules.deadline=10.0", "--set", "rules.patience=5.0")
    machines.bring_up()
    run = machines.background("run", machines.path)
    until(lambda: len(machines.history()) >= 1 or _over(run), "a round")
    machines.site("south").process.stop()
    _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2
    assert "south" in said.splitlines()[-1]
    assert "Traceback" not in said
    code, _, said = machines.ffalm("site", machines.folder.site("south"), "--detach")
    assert code == 0, said
    code, _, said = machines.ffalm("run", machines.path)
    assert code == 0, said
    assert_equals_simulation(machines)
