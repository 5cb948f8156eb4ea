"""A federation in one process: real sites with their own files, behind a wire on which anything may go wrong."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from ffalm.data.types import Examples
from ffalm.engines import Job, Round, Snapshot
from ffalm.engines.loop import Learner, LoopClients
from ffalm.engines.remote.message import Failure, Kind, Message
from ffalm.engines.server import ClientUpdate, ServerContext, own_step, rounds
from ffalm.errors import UserError
from ffalm.fairness import ScoreHistogram
from ffalm.federate.coordinator.agreement import Agreement
from ffalm.federate.disclosure import Disclosed, pooled
from ffalm.federate.federation_config import FederationConfig, SiteConfig
from ffalm.federate.keys import write_key_pair
from ffalm.federate.site.answering import answer
from ffalm.federate.site.rows import read_rows
from ffalm.federation import Federation

NAMES = ("north", "south", "west", "east")

Mishap = Literal["gone", "dead", "late", "failed", "unreadable"] | Callable[[Message], Message]
"""What befalls a site in a round: not connected, dies while it trains, is slow, raises, sends no message, or answers
something else."""


UNREADABLE = Failure("unreadable", "The site's answer cannot be read (ValueError).", "ValueError: It is cut short.")


class Killed(BaseException):
    """The coordinator's process ends here."""


def people(rows: int, seed: int, groups: Sequence[str] = ("female", "male")) -> pd.DataFrame:
    """A table with numbers, categories, a group and a label that depends on all of them."""
    draw = np.random.default_rng(seed)
    age = draw.integers(18, 80, rows)
    job = draw.choice(["clerk", "nurse", "smith"], rows)
    sex = draw.choice(list(groups), rows)
    score = (age - 45) / 20 + (job == "smith") + 0.5 * (sex == groups[-1]) + draw.normal(0, 1, rows)
    label = np.where(score > 0.5, "yes", "no")
    return pd.DataFrame({"age": age, "hours": draw.normal(38, 5, rows).round(1), "job": job, "sex": sex, "loan": label})


def site_folder(root: Path, name: str, frame: pd.DataFrame | None, **data: Any) -> Path:
    """A site's folder with its table in it."""
    folder = root / name
    folder.mkdir(parents=True)
    if frame is not None:
        frame.to_csv(folder / "rows.csv", index=False)
    SiteConfig.parse({"name": name, "device": "cpu", "data": {"file": "rows.csv", **data}}).write(folder / "site.toml")
    return folder


def exchange_keys(folders: Mapping[str, Path]) -> None:
    """Give each site a key pair, and the public keys of the others; skips the test where keys cannot be made."""
    pytest.importorskip("cryptography", reason="keys of sites need the extra 'flower'")
    for name, folder in folders.items():
        write_key_pair(folder, name)
    for (name, folder), (other, there) in itertools.permutations(folders.items(), 2):
        assert name != other
        (folder / "peers").mkdir(exist_ok=True)
        shutil.copy(there / "node.pub", folder / "peers" / f"{other}.pub")


def config(sites: Sequence[str] = NAMES[:3], **sections: Any) -> FederationConfig:
    """A federation that trains in a blink; sections go on top."""
    base: dict[str, Any] = {
        "name": "loans",
        "sites": list(sites),
        "seed": 3,
        "data": {"label": "loan", "group": "sex", "favourable": "yes"},
        "rules": {"patience": 0.05, "min_group": 0},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 5, "batch_size": 16, "lr": 0.2},
        "algorithm": {"name": "ffalm"},
    }
    for name, values in sections.items():
        whole = name == "model" or not isinstance(values, dict)
        base[name] = values if whole else {**base.get(name, {}), **values}
    return FederationConfig.parse(base)


class World:
    """`Sites` whose other end is in this process: each answer is what that site's own folder gives.

    `mishaps` says what befalls a site in a round. The coordinator may be killed before or after any question; the
    sites live on, as they would.
    """

    def __init__(self, folders: Mapping[str, Path], mishaps: Mapping[tuple[str, int], Mishap] | None = None) -> None:
        self.folders = dict(folders)
        self.mishaps = dict(mishaps or {})
        self.nodes = {name: 9000 - 7 * place for place, name in enumerate(folders)}
        self.away: set[str] = set()
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.kill: tuple[str, int] | None = None  # ("before" or "after", number of the question)
        self.told: dict[str, str] = {}  # why a site was refused, as it was told
        self.ended: dict[str, str] = {}  # why the run has ended for a site, as it was told
        self._coming = 1

    def present(self) -> list[int]:
        gone = {name for (name, round), mishap in self.mishaps.items() if mishap == "gone" and round == self._coming}
        return [node for name, node in self.nodes.items() if name not in gone | self.away]

    def ask(self, kind: Kind, messages: Mapping[int, Message], deadline: float) -> dict[int, Message | Failure]:
        names = {node: name for name, node in self.nodes.items()}
        number = len(self.asked)
        self.asked.append((kind, tuple(names[node] for node in messages)))
        if self.kill == ("before", number):
            raise Killed
        found = {node: self._answer(kind, names[node], message) for node, message in messages.items()}
        if kind == "train":
            self._coming = 2 + max(int(message.facts["round"]) for message in messages.values())
        if self.kill == ("after", number):
            raise Killed
        return dict(reversed(found.items()))

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        round = int(message.facts["round"]) + 1 if kind == "train" else 0
        mishap = self.mishaps.get((name, round))
        if mishap in ("gone", "dead") or name in self.away:
            return Failure("lost", "The site's connection was lost.")
        if mishap == "late":
            return Failure("late", f"The site did not answer within {1:g} seconds.")
        if mishap == "failed":
            return Failure("failed", "The disk is full.")
        if mishap == "unreadable":
            return UNREADABLE
        if "refused" in message.facts:
            self.told[name] = str(message.facts["refused"])
        if "ended" in message.facts:
            self.ended[name] = str(message.facts["ended"])
        try:
            given = answer(kind, message, {"site": str(self.folders[name])})
        except UserError as error:
            return Failure("failed", str(error))
        return mishap(given) if callable(mishap) else given


def after(calls: int, then: Callable[[], None], sites: World) -> None:
    """Do something once the sites have been looked for so many times."""
    present, left = sites.present, [calls]

    def counting() -> list[int]:
        left[0] -= 1
        if left[0] == 0:
            then()
        return present()

    sites.present = counting  # type: ignore[method-assign]


def change_rows_in_training(sites: World, site: str, round: int) -> None:
    """Let a site's file become another, of other people, just before it is asked to train in a round."""
    original = sites._answer

    def changing(kind: Kind, name: str, message: Message) -> Message | Failure:
        if kind == "train" and name == site and message.facts["round"] == round - 1:
            people(50, 99).to_csv(sites.folders[site] / "rows.csv", index=False)
        return original(kind, name, message)

    sites._answer = changing  # type: ignore[method-assign]


def with_model(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Message], Message]:
    """A mishap that changes the model in an answer."""

    def spoil(message: Message) -> Message:
        return replace(message, tensors={**message.tensors, "model": change(dict(message.tensors["model"]))})

    return spoil


def world(root: Path, rows: Sequence[int] = (90, 70, 80), **mishaps: Any) -> World:
    """As many sites as sizes, each with people of its own."""
    folders = {
        name: site_folder(root / "sites", name, people(size, seed))
        for seed, (name, size) in enumerate(zip(NAMES, rows, strict=False))
    }
    return World(folders, **mishaps)


class Leaving(LoopClients):
    """Clients of a simulation of which some miss some rounds; as sites do, they take the dual step themselves."""

    def __init__(self, job: Job, missing: set[tuple[int, int]], own_steps: bool = True) -> None:
        super().__init__(job)
        self._missing, self._spec, self._rows = missing, job.spec, job.federation.counts().sum((-1, -2)).tolist()
        self._own_steps = (
            own_steps and job.spec.algorithm.needs_only_sums and job.spec.algorithm.measure.value != "nothing"
        )

    def train(self, chosen: Sequence[int], sent: Snapshot) -> dict[int, ClientUpdate]:
        here = [client for client in chosen if (sent.round + 1, client) not in self._missing]
        updates = super().train(here, sent)
        if not self._own_steps:
            return updates
        algorithm, task = self._spec.algorithm, self._spec.task
        return {
            client: replace(update, tally=None, state=own_step(algorithm, sent, update.tally, self._rows[client], task))
            for client, update in updates.items()
        }


class Simulated:
    """The same federation simulated in one process, with (round, client) pairs left out: what a real one must equal."""

    def __init__(self, plan: FederationConfig, folders: Mapping[str, Path], run: Path) -> None:
        self.agreement = Agreement.load(run / "encoding.json")
        self.parts: list[dict[str, Examples]] = []
        for name in plan.sites:
            site = SiteConfig.read(folders[name] / "site.toml")
            rows = read_rows(site, plan.data, folders[name])
            encoding = self.agreement.encoding
            self.parts.append(rows.encoded(self.agreement.task, None if encoding is None else encoding.to_json()))
        terms = replace(self.agreement.terms(plan.sites[0], plan), model=plan.model)
        spec = terms.client_spec(torch.device("cpu"))
        federation = Federation(tuple(part["train"] for part in self.parts), None, None, self.agreement.task)
        self.job = Job(spec, federation)
        self._learner = Learner(spec)

    def rounds(
        self, missing: set[tuple[int, int]], own_steps: bool = True, known: Sequence[Sequence[int]] = ()
    ) -> list[Round]:
        """The rounds, bit for bit; without own steps, as a simulation computes them.

        `known` are the clients whose rows the server knew in each round, where that was not all of them from the start.
        """
        context, clients = ServerContext.of(self.job), Leaving(self.job, missing, own_steps)
        everybody = list(range(len(context.counts)))
        if all(list(one) == everybody for one in known):
            return list(rounds(context, clients))
        done: list[Round] = []
        for before, now in itertools.pairwise([known[0], *known]):
            counts = torch.where(_marked(now, everybody).view(-1, 1, 1), context.counts, 0)
            start = done[-1].snapshot if done else None
            if start is not None and list(now) != list(before):
                new = _marked([client for client in now if client not in before], everybody)
                state = context.algorithm.recounted(start.state, context.task, counts, new)
                start = replace(start, state=start.state | state)
            done.append(next(rounds(replace(context, counts=counts, start=start), clients)))
        return done

    def histogram(self, model: dict[str, Tensor], part: str, clients: Sequence[int] | None = None) -> ScoreHistogram:
        """The score histogram of a model over the rows of all clients, or some, at once."""
        return self._learner.histogram(model, self.pooled(part, clients))

    def pooled(self, part: str, clients: Sequence[int] | None = None) -> Examples:
        """The rows of all clients, or some."""
        rows = [self.parts[client][part] for client in (range(len(self.parts)) if clients is None else clients)]
        return Examples(*(torch.cat([getattr(one, name) for one in rows]) for name in ("x", "y", "group")))

    def metrics(self, model: dict[str, Tensor], part: str, clients: Sequence[int]) -> dict[str, float]:
        """The metrics of a model from the summed Tallies of some clients."""
        task = self.agreement.task
        told = [Disclosed.of(self._learner.score(model, self.parts[client][part]), 0) for client in clients]
        return pooled(told, task).metrics(task.favourable)


def _marked(clients: Sequence[int], everybody: Sequence[int]) -> Tensor:
    """Which of all clients these are."""
    return torch.tensor([client in clients for client in everybody])
