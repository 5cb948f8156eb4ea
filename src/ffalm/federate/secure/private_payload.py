"""A site's numbers for a secure sum under differential privacy: bounded, weighted, and with its share of the noise.

The coordinator sees the sum alone, so each site bounds its own change and adds noise of the standard deviation
sigma / sqrt(k), where k is the fewest sites of whose sum this site helps to take the masks off. In a sum of m >= k
sites there is then noise of at least sigma, which is what the accountant counts with:

    model   w clipped(change) + N(0, (noise * clip)^2 / k)               w = rows / most rows <= 1
    duals   w clipped(step) + N(0, (tally_noise * state_clip)^2 / k)
    scores  Tally + N(0, (tally_noise * r)^2)         r the larger of the site's own reach and the largest's / sqrt(k)

Noise is a function of a secret of the site, the run and the purpose: a question that is asked again gets the same
noise, which nobody can average away.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ffalm.algorithms import Algorithm, RoundReport, State
from ffalm.data.types import Task
from ffalm.engines import Snapshot
from ffalm.engines.server import ClientUpdate
from ffalm.fairness import Tally
from ffalm.federate.secure.crypto import KEY_BYTES, stream
from ffalm.federate.secure.payload import Numbers
from ffalm.privacy.changes import shrinkage
from ffalm.privacy.noise import bytes_for, normal_from
from ffalm.privacy.steps import open_entries
from ffalm.privacy.tallies import bounded, reach
from ffalm.run_settings import Privacy
from ffalm.system.files import write_private


@dataclass(frozen=True)
class NoiseShare:
    """A site's part of the noise of one sum."""

    settings: Privacy
    key: bytes  # of this run and purpose
    fewest: int  # sites whose noise is in every sum that this site helps to reveal

    @classmethod
    def of(cls, settings: Privacy, folder: Path, run: str, purpose: str, fewest: int) -> NoiseShare:
        """The noise for a purpose of a run, by a secret that this site keeps to itself."""
        file = folder / ".answered" / "noise.key"
        if not file.exists():
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(file, secrets.token_bytes(KEY_BYTES))
        key = hmac.new(file.read_bytes(), f"{run} {purpose}".encode(), hashlib.sha256).digest()
        return cls(settings, key, fewest)

    def normal(self, name: str, like: Tensor, spread: float, shared: bool = True) -> Tensor:
        """Numbers for one entry; `spread` is that of all sites together where it is `shared`."""
        key = hmac.new(self.key, name.encode(), hashlib.sha256).digest()
        draws = normal_from(stream(key, bytes_for(like.numel())), like.numel()).view(like.shape)
        return draws * (spread / math.sqrt(self.fewest) if shared else spread)


def private_round_numbers(
    sent: Snapshot,
    reply: ClientUpdate,
    moved: State,
    weight: float,
    rows: int,
    share: NoiseShare,
    algorithm: Algorithm,
    task: Task,
    frozen: frozenset[str],
) -> Numbers:
    """A site's own numbers of a round, weighted already; neither its loss nor its scores are among them."""
    settings = share.settings
    trained = {name: v for name, v in sent.model.items() if v.is_floating_point() and name not in frozen}
    scale = weight * shrinkage(trained, reply.model, settings.clip)
    numbers: dict[str, Tensor] = {}
    for name, start in sent.model.items():
        label = f"model's {name!r}"
        change = reply.model[name].cpu().double() - start.cpu().double()
        if name in trained:
            noise = share.normal(label, change, settings.noise * settings.clip)
            numbers[label] = noise + (scale * change if scale else 0.0)
        else:
            numbers[label] = torch.zeros_like(change) if start.is_floating_point() else change
    numbers |= _private_state(sent, moved, weight, rows, share, algorithm, task)
    plain = {"rows": rows, "loss": 0.0, "negative": 0.0}
    numbers |= {name: torch.tensor(value, dtype=torch.float64) for name, value in plain.items()}
    return {name: value.numpy() for name, value in numbers.items()}


def private_score_numbers(tally: Tally, largest_reach: float, share: NoiseShare) -> Numbers:
    """A site's Tally of the test rows; its validation rows are not told."""
    settings, told = share.settings, bounded(tally, share.settings.loss_bound)
    own = max(reach(tally.count), largest_reach / math.sqrt(share.fewest))
    spread = settings.of_tallies * own
    confusion = told.confusion + share.normal("counts", told.confusion, spread, shared=False)
    loss = told.loss + settings.loss_bound * share.normal("losses", told.loss, spread, shared=False)
    return {
        "counts of the test rows": confusion.numpy(),
        "losses of the test rows": loss.numpy(),
    }


def _private_state(
    sent: Snapshot, moved: State, weight: float, rows: int, share: NoiseShare, algorithm: Algorithm, task: Task
) -> dict[str, Tensor]:
    if not sent.state:
        return {}
    counts = torch.zeros(1, task.labels, task.groups, dtype=torch.int64)
    counts[0, 0, 0] = rows
    report = RoundReport(sent.round + 1, counts, torch.tensor([True]), None, task)
    still, names = open_entries(algorithm, sent.state, report)
    before = {name: still[name].cpu().double() for name in names}
    bound = share.settings.of_steps(algorithm.step_norm)
    factor, spread = shrinkage(before, moved, bound), share.settings.of_tallies * bound
    numbers = {f"state's {name!r}": weight * value.cpu().double() for name, value in still.items()}
    for name, start in before.items():
        label = f"state's {name!r}"
        step = factor * (moved[name].cpu().double() - start) if factor else torch.zeros_like(start)
        numbers[label] = numbers[label] + weight * step + share.normal(label, start, spread)
    return numbers
