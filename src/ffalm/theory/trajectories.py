"""Federated descent on the example of two clients, a million rounds in about a second.

In round t every client takes E gradient steps of size scale / (t + shift) from the server's model, the server averages
the two results, and the dual ascends by itself: its gradient has no model in it, nor the model's a dual.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ffalm.system.child_process import follow_parent
from ffalm.theory.constants import PAPER
from ffalm.theory.numeric import Array
from ffalm.theory.two_clients import CLIENTS, DUALS, MODELS

ROUNDS = 1_000_000

#: Rounds after which it is clear in which basin a run ends.
SHARE_ROUNDS = 1000

#: Where the paper starts, in the model as in the dual.
START = 2.0

#: Beyond this a model is lost: the next steps would overflow.
_LOST = 1e250

#: At steps up to one over the clients' largest curvature, a gradient step keeps the order of models; as both edges of
#: the box are moved inwards, nothing can leave it any more and there is nothing left to clamp.
_ORDERLY = 1 / 6.2


@dataclass(frozen=True)
class Setting:
    """One way of running the example; the paper does not state `shift`, `clamp` and `local_steps`."""

    local_steps: int = 1
    shift: int = 0  # the step of round t is scale / (t + shift)
    clamp: Literal["local", "server", "none"] = "local"  # to the box, after every local step or after averaging
    cap: float = math.inf  # the largest step allowed
    clip: float = math.inf  # the largest slope allowed
    start: float = START
    scale: float = 2 * PAPER.stretch / PAPER.pl  # 2 beta^2 / mu = 16

    def step(self, round: int) -> float:
        """The step of a round."""
        return min(self.cap, self.scale / (round + self.shift))

    @property
    def first_plain_round(self) -> int | None:
        """The first round after which neither cap nor clamp has an effect; None with clipping, which always may."""
        if self.clip < math.inf:
            return None
        return math.ceil(self.scale / min(self.cap, _ORDERLY)) + 1


@dataclass(frozen=True)
class Path:
    """Where a run went: the server's models at the start, after some rounds, and at the end."""

    setting: Setting
    rounds: list[int]
    models: list[float]
    farthest: float  # the largest size that any local model had

    @property
    def last(self) -> float:
        """The final model; not finite where the run diverged."""
        return self.models[-1]


def marked_rounds(rounds: int) -> list[int]:
    """The rounds to record: each of the first 40, which decide where a run ends, then fewer and fewer."""
    later = np.geomspace(40, max(rounds, 40), 60).round()
    return sorted({*range(1, min(40, rounds) + 1), *(int(number) for number in later if number <= rounds), rounds})


def run(setting: Setting, rounds: int = ROUNDS) -> Path:
    """Descend for so many rounds and keep the models after the marked ones."""
    plain = setting.first_plain_round or rounds
    stops = sorted({*marked_rounds(rounds), min(plain, rounds)})
    models, done, farthest = [setting.start], 0, abs(setting.start)
    for stop in stops:
        if done >= plain:
            models.append(_plain(models[-1], setting, done + 1, stop))
        else:
            model, far = _careful(models[-1], setting, done + 1, stop)
            models.append(model)
            farthest = max(farthest, far)
        done = stop
    return Path(setting, [0, *stops], models, farthest)


def run_all(settings: Sequence[Setting], rounds: int = ROUNDS) -> dict[Setting, Path]:
    """Run several settings on all cores, the longest first."""
    from ffalm.system.hardware import cores

    longest_first = sorted(settings, key=lambda setting: -setting.local_steps)
    workers = min(cores(), len(longest_first))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=follow_parent) as pool:
        paths = pool.map(run, longest_first, [rounds] * len(longest_first))
        return dict(zip(longest_first, paths, strict=True))


def _careful(model: float, setting: Setting, first: int, last: int) -> tuple[float, float]:
    """Rounds as they are written down, with cap, clip and clamp; also the largest size that a local model had."""
    low, high = MODELS
    farthest = 0.0
    for number in range(first, last + 1):
        step, total = setting.step(number), 0.0
        for client in CLIENTS:
            local = model
            for _ in range(setting.local_steps):
                if not abs(local) < _LOST:
                    return math.nan, math.inf
                slope = 2 * (local - client.centre) + client.height * math.sin(2 * (local - client.phase))
                local -= step * max(-setting.clip, min(setting.clip, slope))
                if setting.clamp == "local":
                    local = max(low, min(high, local))
                farthest = max(farthest, abs(local))
            total += local
        model = total / len(CLIENTS)
        if setting.clamp == "server":
            model = max(low, min(high, model))
    return model, farthest


def _plain(model: float, setting: Setting, first: int, last: int) -> float:
    """Rounds with nothing to cap or clamp, written for speed in x = 2 (w - phase), in which a slope is
    x + 2 (phase - centre) + height sin x.
    """
    sin, steps = math.sin, range(setting.local_steps)
    one, two = CLIENTS
    add_one, height_one, origin_one = 2 * (one.phase - one.centre), one.height, 2 * one.phase
    add_two, height_two, origin_two = 2 * (two.phase - two.centre), two.height, 2 * two.phase
    scale = 2 * setting.scale
    for index in range(first + setting.shift, last + setting.shift + 1):
        step = scale / index
        x, y = 2 * model - origin_one, 2 * model - origin_two
        for _ in steps:
            x -= step * (x + add_one + height_one * sin(x))
            y -= step * (y + add_two + height_two * sin(y))
        model = (x + y + origin_one + origin_two) / 4
    return model


def duals(rounds: int = ROUNDS, start: float = START) -> dict[int, float]:
    """The server's dual by marked round: the proof's steps, averaged over the two clients."""
    kept, dual, marked = {0: start}, start, {*marked_rounds(rounds)}
    one, two = (client.dual_centre for client in CLIENTS)
    low, high = DUALS
    longest, decaying = 1 / PAPER.smoothness, 4 / PAPER.concavity
    for number in range(1, rounds + 1):
        step = min(longest, decaying / number ** (2 / 3))
        dual = ((dual - 2 * step * (dual - one)) + (dual - 2 * step * (dual - two))) / 2
        dual = max(low, min(high, dual))
        if number in marked:
            kept[number] = dual
    return kept


def share_ending_left(setting: Setting, starts: int = 2001, rounds: int = SHARE_ROUNDS) -> float:
    """The share of evenly spaced starts that end in the basin of the worse saddle, for runs with a local clamp.

    Once the steps are small enough, no run crosses the barrier any more, so a few rounds are enough.
    """
    from ffalm.theory.two_clients import stationary

    barrier = next(point.model for point in stationary() if not point.is_saddle)
    models: Array = np.linspace(*MODELS, starts)
    for number in range(1, rounds + 1):
        step = setting.step(number)
        total = np.zeros_like(models)
        for client in CLIENTS:
            local = models
            for _ in range(setting.local_steps):
                local = np.clip(local - step * client.slope(local), *MODELS)
            total += local
        models = total / len(CLIENTS)
    return float(np.mean(models < barrier))
