"""Secure sums in which one party's move is changed: the attempt ends, or the sum is right."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from tests.federate.secure.parties import Attempt, layout, numbers
from tests.fuzzing.mutations import changed_bytes, changed_text

from ffalm.federate.secure.aggregator import TooFew
from ffalm.federate.secure.protocol import ForwardedOffer, Offer

_WORDS = (np.uint32, np.uint64, np.int64, np.float32)


def secure_sum(draws: random.Random) -> str:
    """A changed move of a secure sum ends the attempt, or the sum is that of the sites in it."""
    plan = layout(4, 3)
    own = numbers(4, draws.randrange(100), 3)
    attempt = Attempt(plan, {client: plan.words(one) for client, one in own.items()})
    dropped = {3: draws.choice(("offer", "mask", "reveal"))} if draws.random() < 0.5 else {}
    move, who = draws.choice(("offer", "passed", "words", "shares", "lists", "signature")), draws.randrange(3)
    attempt.offers(dropped)  # type: ignore[arg-type]
    if move == "offer":
        attempt.gathering.take(who, Offer.from_text(changed_text(draws, attempt.gathering.offers[who].to_text())))
    if not attempt.gathering.enough(attempt.gathering.offers):
        raise TooFew("offers")
    if move == "passed":
        passed = attempt.gathering.passed
        attempt.gathering.passed = lambda client: _passed(draws, passed(client))  # type: ignore[method-assign]
    attempt.masks(dropped)  # type: ignore[arg-type]
    if not attempt.gathering.enough(attempt.masked):
        raise TooFew("masked")
    if move == "words":
        words = {
            name: np.resize(value, draws.choice((0, 1, value.size + 1, value.size))).astype(draws.choice(_WORDS))
            for name, value in attempt.masked[who].items()
        }
        if plan.fits(words):
            return "fits"  # a site may say what it likes
        del attempt.masked[who]
        if not attempt.gathering.enough(attempt.masked):
            raise TooFew("masked")
    if move == "lists":
        inside, outside = attempt.gathering.lists(attempt.masked)
        one = draws.randrange(-1, 6)
        strange = (inside, [*outside, one]) if draws.random() < 0.5 else ([*inside, one], outside)
        attempt.gathering.lists = lambda summed: strange  # type: ignore[method-assign]
    attempt.reveals(dropped)  # type: ignore[arg-type]
    if move == "shares":
        told = attempt.told[who]
        attempt.told[who] = {
            draws.choice((key, key, 9, -1)): changed_bytes(draws, share) for key, share in told.items()
        }
    found = plan.values(attempt.total())
    for name, value in found.items():
        true = sum(own[client][name] for client in attempt.masked)
        assert np.abs(value - true).max() < 1e-6, f"a wrong sum after {move}"
    return "right sum"


def _passed(draws: random.Random, passed: dict[int, ForwardedOffer]) -> dict[int, ForwardedOffer]:
    if not passed:
        return passed
    client, name = draws.choice(sorted(passed)), draws.choice(("mask_key", "signature", "sealed", "digests"))
    value = getattr(passed[client], name)
    changed: Any = [changed_text(draws, one) for one in ([value] if isinstance(value, str) else value)]
    changed = changed[0] if isinstance(value, str) else tuple(changed)
    return {**passed, client: replace(passed[client], **{name: changed})}
