"""A registered site shows its key in a request's headers; nobody else gets as far as sending a body."""

from __future__ import annotations

import asyncio
import datetime
from base64 import b64encode
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from ffalm.federate.deploy import site_admission
from ffalm.federate.deploy.site_admission import SiteAdmission

SITE, STRANGER = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())


def scope(signer: Any = SITE, shown: Any = SITE, seconds: float = 0.0, address: str = "10.0.0.5") -> dict[str, Any]:
    """A request as Flower's SuperNode signs it."""
    time = (now() + datetime.timedelta(seconds=seconds)).isoformat()
    headers = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(shown.public_key())),
        TIMESTAMP_HEADER: time.encode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(signer, time.encode())),
    }
    return {"headers": [(name.lower().encode(), value) for name, value in headers.items()], "client": (address, 1)}


def refusal(asked: dict[str, Any], admission: SiteAdmission | None = None) -> int | None:
    registered = public_key_to_bytes(SITE.public_key())
    return asyncio.run((admission or SiteAdmission(lambda key: key == registered)).refusal(asked))


def test_a_registered_key_is_let_in() -> None:
    assert refusal(scope()) is None


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"headers": [(b"flwr-public-key", b"not base64"), (b"flwr-signature", b"")]},
        scope(STRANGER, STRANGER),
        scope(STRANGER, SITE),
        scope(seconds=-3600.0),
        scope(seconds=3600.0),
    ],
    ids=["no key", "nonsense", "another key", "another's signature", "too old", "from the future"],
)
def test_everybody_else_is_refused(asked: dict[str, Any]) -> None:
    assert refusal(asked) == 401


def test_an_address_that_is_refused_too_often_is_told_so_and_a_site_there_is_let_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site_admission, "MOST_REFUSALS", 2)
    registered = public_key_to_bytes(SITE.public_key())
    admission = SiteAdmission(lambda key: key == registered)
    assert [refusal(scope(STRANGER, STRANGER), admission) for _ in range(3)] == [401, 401, 429]
    assert refusal(scope(STRANGER, STRANGER, address="10.0.0.6"), admission) == 401
    assert refusal(scope(), admission) is None


def test_without_keys_everybody_is_let_in() -> None:
    assert refusal({}, SiteAdmission(lambda key: False, enabled=False)) is None
