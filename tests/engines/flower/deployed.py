"""The two ends of a small federation of real processes, as `test_deployment.py` starts them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from ffalm.engines.flower.apps import client_app, server_app
from ffalm.engines.remote.message import Fact, Failure, Kind, Message, Sites
from ffalm.errors import PublicError

MODEL = {"weight": torch.arange(6.0).view(2, 3), "num_batches_tracked": torch.tensor(7)}


def lead(sites: Sites, settings: dict[str, Fact]) -> None:
    """Ask two sites this and that, and write down what became of it."""
    until(lambda: len(sites.present()) == 2)
    named = ask(sites, "hello", {node: {} for node in sites.present()}, 60.0)
    north, south = sorted(named, key=lambda node: str(named[node]["facts"]["site"]))
    log: list[Any] = [named[north], named[south]]
    for north_does, south_does, deadline in (
        ("echo", "echo", 60.0),
        ("echo", "mistake", 60.0),
        ("bug", "sleep", 25.0),
        ("echo", "echo", 60.0),
    ):
        answers = ask(sites, "train", {north: {"do": north_does}, south: {"do": south_does}}, deadline)
        log.append([answers[north], answers[south]])
    Path(str(settings["folder"]), "log.json").write_text(json.dumps(log))
    began = time.monotonic()
    answers = ask(sites, "score", {north: {"do": "echo"}, south: {"do": "sleep long"}}, 120.0)
    log.append([answers[north], answers[south], time.monotonic() - began, sites.present() == [north]])
    Path(str(settings["folder"]), "end.json").write_text(json.dumps(log))


def ask(sites: Sites, kind: Kind, facts: dict[int, dict[str, Fact]], deadline: float) -> dict[int, dict[str, Any]]:
    """The answers in values that JSON knows."""
    answers = sites.ask(kind, {node: Message({"model": MODEL}, said) for node, said in facts.items()}, deadline)
    return {node: _plain(answer) for node, answer in answers.items()}


def _plain(answer: Message | Failure) -> dict[str, Any]:
    if isinstance(answer, Failure):
        return {"kind": answer.kind, "reason": answer.reason, "trace": answer.trace}
    exact = all(torch.equal(answer.tensors["model"][name], value) for name, value in MODEL.items())
    return {"facts": answer.facts, "exact": exact, "shape": list(answer.tensors["model"]["num_batches_tracked"].shape)}


def until(happened: Any) -> None:
    """Wait for something to happen, a minute at most."""
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.1)


def answer(kind: Kind, message: Message, node: dict[str, Fact]) -> Message:
    """Do as asked."""
    match message.facts.get("do"):
        case "mistake":
            raise PublicError("The file is empty.")
        case "bug":
            raise ValueError("Jane Doe, 47")
        case "sleep":
            time.sleep(30)
        case "sleep long":
            Path(str(node["folder"]), "asleep").touch()
            time.sleep(60)
    return Message(message.tensors, {**message.facts, "asked": kind, "site": node["site"]})


server = server_app(lead)
client = client_app(answer)
