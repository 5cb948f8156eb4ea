"""The protocol alone: right sums whoever drops out and when, and nothing but sums."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.federate.secure.parties import Attempt, Fate, PlainSigner, attempt, uniform

from ffalm.errors import UserError
from ffalm.federate.secure.aggregator import TooFew
from ffalm.federate.secure.crypto import KeyPair
from ffalm.federate.secure.fixed_point import Record, VectorLayout, Words, added
from ffalm.federate.secure.protocol import (
    Circle,
    Offer,
    Secrets,
    apply,
    confirm,
    introduced,
    mask,
    mask_purpose,
    offer,
    own_mask,
)
from ffalm.federate.secure.shamir import PRIME

FATES: tuple[Fate, ...] = ("stays", "offer", "mask", "reveal")


def plain_sum(one: Attempt, clients: set[int]) -> Words:
    total = one.plan.empty()
    for client in clients:
        total = added(total, one.words[client])
    return total


def same(first: Words, second: Words) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in second)


def check_pattern(pattern: tuple[Fate, ...], threshold: int) -> bool:
    """The sum is that of those that masked in time, or there is none; says which."""
    fates = dict(enumerate(pattern))
    one = attempt(len(pattern))
    masked = {client for client, fate in fates.items() if fate in ("stays", "reveal")}
    enough = pattern.count("stays") >= threshold
    if enough:
        assert same(one.run(fates), plain_sum(one, masked)), pattern
        assert set(one.masked) == masked
    else:
        with pytest.raises(TooFew):
            one.run(fates)
    for shares in one.told.values():
        assert set(shares) == set(one.secrets)
        for client, share in shares.items():
            kinds = [share == held[kind] for held in (s.held[client] for s in one.secrets.values()) for kind in (0, 1)]
            assert sum(kinds) == 1 and kinds.index(True) % 2 == (client not in masked)
    return enough


def test_four_sites_survive_every_pattern_of_drop_outs_down_to_the_threshold() -> None:
    done = [check_pattern(pattern, 3) for pattern in itertools.product(FATES, repeat=4)]
    assert len(done) == 256 and sum(done) == 13


def test_five_sites_survive_every_number_of_drop_outs_at_every_move_down_to_the_threshold() -> None:
    done = [check_pattern(pattern, 3) for pattern in itertools.combinations_with_replacement(FATES, 5)]
    assert len(done) == 56 and sum(done) == 10


def test_with_few_neighbours_each_the_sum_is_the_same() -> None:
    one = attempt(12, share=0.6, neighbours=4)
    near = one.gathering.neighbours
    assert {len(others) for others in near.values()} == {4}
    far = next(client for client in near if client not in near[3] and not {*near[client]} & {3, *near[3]})
    fates: dict[int, Fate] = {3: "mask", far: "reveal"}
    assert same(one.run(fates), plain_sum(one, set(range(12)) - {3}))


def test_a_circle_that_lost_too_many_cannot_be_unmasked_though_others_could() -> None:
    one = attempt(12, share=0.8, neighbours=4)
    lost = one.gathering.neighbours[0][:2]
    with pytest.raises(TooFew):
        one.run(dict.fromkeys(lost, "mask"))


# What a site refuses


def begun(sites: int = 5) -> Attempt:
    one = attempt(sites)
    one.offers({})
    one.masks({})
    return one


def test_a_site_masks_once_per_attempt() -> None:
    one = begun()
    with pytest.raises(UserError, match="one answer only"):
        one.accepted(0, one.gathering.passed(0))


@pytest.mark.parametrize(
    ("summed", "dropped"),
    [
        ([0, 1, 2, 3, 4], [4]),  # both secrets of one site
        ([1, 2, 3], [0, 4]),  # calls the site itself dropped
        ([0, 1, 2], [3]),  # says nothing of one
        ([0, 1, 2, 3, 4, 5], []),  # a stranger
        ([0, 1, 2, 3, 4, 4], []),  # one twice
        ([0, 1, 2, 3], [4, 4]),
    ],
)
def test_a_site_refuses_lists_that_cannot_be_true(summed: list[int], dropped: list[int]) -> None:
    with pytest.raises(UserError, match="cannot be true"):
        begun().revealed(0, summed, dropped)


def test_a_site_refuses_to_reveal_the_sum_of_too_few() -> None:
    with pytest.raises(UserError, match="Only 2 of the 3 sites"):
        begun().revealed(0, [0, 1], [2, 3, 4])


def test_what_one_site_asks_of_the_size_of_a_sum_the_others_insist_on_too() -> None:
    """Their shares would unmask the answer of the last site without its help."""
    one = attempt(5)
    one.min_sites[4] = 5
    one.offers({})
    one.masks({3: "mask"})
    for client in (0, 1, 2):
        with pytest.raises(UserError, match="sums of at least 5 sites; this one is of 4"):
            confirm(one.secrets[client], [0, 1, 2, 4], [3], one.signers[client])
    confirm(one.secrets[0], [0, 1, 2, 3], [4], one.signers[0])


def test_what_a_site_asks_of_the_size_of_a_sum_is_signed() -> None:
    one = attempt(4)
    one.offers({})
    passed = one.gathering.passed(0)
    with pytest.raises(UserError, match="not signed by site-1"):
        one.accepted(0, {**passed, 1: replace(passed[1], min_sites=1)})


@pytest.mark.parametrize("number", [-1, 2**20, PRIME - 1])
def test_a_neighbour_whose_number_would_make_its_share_the_secret_is_refused(number: int) -> None:
    """A share is the value of a polynomial at the holder's number and one, and the secret is its value at 0."""
    one = attempt(4)
    circle, mate = one.gathering.circle(0), one.signers[3]
    key = (mate.name, *introduced("run", number, one.pairs[3], mate))
    peers = {1: circle.peers[1], 2: circle.peers[2], number: key}
    with pytest.raises(UserError, match="cannot be true"):
        offer(replace(circle, peers=peers, everyone=(0, 1, 2, number)), one.pairs[0], one.signers[0])


def test_a_site_refuses_to_reveal_before_it_has_masked() -> None:
    one = attempt(3)
    one.offers({})
    with pytest.raises(UserError, match="not masked anything"):
        one.revealed(0, [0, 1, 2], [])


def test_a_site_refuses_to_mask_with_too_few_offers() -> None:
    one = attempt(5)
    one.offers({2: "offer", 3: "offer", 4: "offer"})
    with pytest.raises(UserError, match="Only 2 of the 3 sites"):
        one.accepted(0, one.gathering.passed(0))


@pytest.mark.parametrize("threshold", [0, 1, 2, 6])
def test_a_site_refuses_a_threshold_with_which_both_of_its_secrets_could_be_had(threshold: int) -> None:
    circle = replace(attempt(5).gathering.circle(0), threshold=threshold)
    with pytest.raises(UserError, match="does not hide"):
        offer(circle, KeyPair.new(), PlainSigner("site-0"))


def test_shares_that_were_changed_or_swapped_on_their_way_are_refused() -> None:
    one = attempt(4)
    one.offers({})
    passed = one.gathering.passed(0)
    body = bytearray.fromhex(passed[1].sealed)
    body[20] ^= 1
    for wrong in (body.hex(), passed[2].sealed, one.gathering.passed(3)[1].sealed, "", "zz"):
        with pytest.raises(UserError, match="client 1 cannot be opened"):
            one.accepted(0, {**passed, 1: replace(passed[1], sealed=wrong)})


def test_shares_of_an_earlier_attempt_are_refused() -> None:
    one = attempt(4)
    one.offers({})
    again = Attempt(one.plan, one.words)
    again.pairs = one.pairs
    again.gathering = replace(one.gathering, attempt="another", offers={})
    again.offers({})
    old, passed = one.gathering.passed(0)[1], again.gathering.passed(0)
    with pytest.raises(UserError, match="not signed by site-1"):
        again.accepted(0, {**passed, 1: old})
    with pytest.raises(UserError, match="client 1 cannot be opened"):
        again.accepted(0, {**passed, 1: replace(passed[1], sealed=old.sealed)})


def test_shares_other_than_announced_are_refused() -> None:
    one = attempt(4)
    one.offers({})
    passed = one.gathering.passed(0)
    with pytest.raises(UserError, match="not those that it announced"):
        one.accepted(0, {**passed, 1: replace(passed[1], digests=passed[2].digests)})


# What the coordinator refuses


def test_a_tampered_or_copied_share_is_not_used_and_who_told_it_is_named() -> None:
    one = begun()
    one.reveals({})
    one.told[1][3] = bytes(33)
    one.told[2][3] = one.told[0][3]
    assert same(one.total(), plain_sum(one, set(range(5))))
    assert set(one.gathering.wrong) == {1, 2} and "share of client 3" in one.gathering.wrong[1]


def test_with_too_few_right_shares_there_is_no_sum() -> None:
    one = begun()
    one.reveals({})
    for teller in (1, 2, 4):
        one.told[teller][3] = one.told[0][3]
    with pytest.raises(TooFew, match="only 2 of the 3 shares of client 3"):
        one.total()


def test_an_offer_that_is_not_made_for_its_circle_is_refused() -> None:
    one = attempt(4)
    one.offers({})
    made = one.gathering.offers[0]
    few = replace(made, sealed={1: made.sealed[1]})
    with pytest.raises(UserError, match="not made for its neighbours"):
        one.gathering.take(0, few)
    with pytest.raises(UserError, match="malformed"):
        Offer.from_text("[]")
    with pytest.raises(UserError, match="cannot be read"):
        Offer.from_text("{")


# What the coordinator sees


SIZE = 20_000
PLAN = VectorLayout([Record("numbers", (SIZE,), 8.0, "range", 32)], 5)


def seen(fates: dict[int, Fate] | None = None) -> Attempt:
    """An honest attempt in which every site's words are the same, and far from random."""
    words = PLAN.words({"numbers": np.full(SIZE, 0.125)})
    one = Attempt(PLAN, dict.fromkeys(range(5), words))
    one.run(fates or {})
    return one


def test_masked_words_look_random_and_none_is_like_another() -> None:
    one = seen()
    assert not uniform(one.words[0]["32"])
    for client, words in one.masked.items():
        assert uniform(words["32"])
        assert not np.any(words["32"] == one.words[client]["32"], where=np.arange(SIZE) < 3)
    for first, second in itertools.combinations(one.masked.values(), 2):
        assert uniform(first["32"] - second["32"])


def test_the_same_words_masked_in_another_attempt_look_unrelated() -> None:
    assert uniform(seen().masked[0]["32"] - seen().masked[0]["32"])


def test_a_summed_sites_words_stay_hidden_when_its_own_mask_is_off() -> None:
    one = seen({4: "mask"})
    for client, words in one.masked.items():
        stripped = {name: value.copy() for name, value in words.items()}
        apply(stripped, own_mask(one.secrets[client].seed, one.gathering.attempt), add=False)
        assert uniform(stripped["32"])


def test_a_late_sites_words_stay_hidden_when_its_masks_with_others_are_off() -> None:
    one = seen({4: "mask"})
    late = one.late[4]
    pair = KeyPair.of(one.secrets[4].mask_private)
    for other in range(4):
        public = bytes.fromhex(one.gathering.offers[other].mask_key)
        apply(late, pair.shared(public, mask_purpose(one.gathering.circle(4), "question")), add=other < 4)
    assert uniform(late["32"])
    apply(late, own_mask(one.secrets[4].seed, one.gathering.attempt), add=False)
    assert np.array_equal(late["32"], one.words[4]["32"])


def test_masks_of_two_sites_cancel() -> None:
    one = attempt(2)
    one.offers({})
    one.masks({})
    total = added(one.masked[0], one.masked[1])
    for client in (0, 1):
        apply(total, own_mask(one.secrets[client].seed, one.gathering.attempt), add=False)
    assert same(total, plain_sum(one, {0, 1}))


# Texts


def test_what_travels_and_what_is_kept_comes_back_from_its_text() -> None:
    one = begun(3)
    circle, made, kept = one.gathering.circle(1), one.gathering.offers[1], one.secrets[1]
    assert Circle.from_text(circle.to_text()) == circle
    assert Offer.from_text(made.to_text()) == made
    assert Secrets.from_text(kept.to_text()) == kept
    assert kept.seed.hex() not in repr(kept) and same(mask(kept, one.words[1], "question"), one.masked[1])
