"""Clients at the other end of a wire are led like those in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engines.remote.nearby import Nearby, assert_same_tensors
from tests.engines.test_conformance import assert_same_record, jobs_of

import ffalm
from ffalm.engines import Job, Round
from ffalm.engines.loop import LoopEngine
from ffalm.engines.remote.message import Failure
from ffalm.engines.remote.remote_clients import RemoteClients
from ffalm.engines.server import ServerContext, rounds
from ffalm.errors import UserError

LATE = Failure("late", "The site did not answer within 5 seconds.")


def job() -> Job:
    return jobs_of(ffalm.FFALM(), seeds=1, participation=0.6)[0]


def led(job: Job, sites: Nearby) -> Iterator[Round]:
    """A run whose clients are at these sites."""
    order = dict(enumerate(sites.present()))
    return rounds(ServerContext.of(job), RemoteClients(job.spec, sites, order, 5.0, job.federation.validation))


def test_a_run_at_sites_gives_the_reference_numbers_in_whatever_order_they_answer() -> None:
    sites = Nearby(job())
    for found, (_, expected) in zip(led(job(), sites), LoopEngine().train([job()]), strict=True):
        assert_same_tensors(found.snapshot.model, expected.snapshot.model)
        assert_same_tensors(found.snapshot.state, expected.snapshot.state)
        assert_same_record(found.record, expected.record)


def test_each_chosen_client_is_asked_once_a_round_with_the_deadline() -> None:
    sites = Nearby(job())
    done = list(led(job(), sites))
    assert [(kind, deadline) for kind, _, deadline in sites.asked] == [("train", 5.0)] * len(done)
    assert all(len(asked) == 3 for _, asked, _ in sites.asked)


def test_a_user_error_at_a_client_ends_the_run_in_its_own_words() -> None:
    sites = Nearby(job(), dict.fromkeys(range(100, 105), Failure("failed", "The file is empty.")))
    with pytest.raises(UserError, match=r"^The file is empty\.$"):
        next(led(job(), sites))


@pytest.mark.parametrize(
    "failure", [LATE, Failure("failed", "KeyError: 3", "line 7 of somewhere")], ids=lambda f: f.kind
)
def test_any_other_failure_is_no_mistake_of_the_user(failure: Failure) -> None:
    sites = Nearby(job(), dict.fromkeys(range(100, 105), failure))
    with pytest.raises(RuntimeError, match=rf"in round 1: {failure.reason}"):
        next(led(job(), sites))
