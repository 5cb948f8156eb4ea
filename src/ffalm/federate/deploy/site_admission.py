"""Admits requests from the network that show a registered node key, before their body is read."""

from __future__ import annotations

import binascii
import datetime
import time
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.concurrency import run_in_threadpool

from ffalm.federate.deploy.fleet_gateway import Scope

MOST_REFUSALS = 120  # with 401, of one address in a minute; the others get 429
_MINUTE = 60.0
_MOST_ADDRESSES = 10_000


@dataclass
class SiteAdmission:
    """Checks the key, the signature and the time in a request's headers, as Flower does after it has read the body."""

    known: Callable[[bytes], bool]  # whether a public key is registered
    enabled: bool = True  # whether sites must show keys
    _refused: dict[str, tuple[float, int]] = field(default_factory=dict)  # by address: since when, how often

    @classmethod
    def of(cls, app: Any) -> SiteAdmission:
        """With the keys that a SuperLink's application has registered."""

        def known(key: bytes) -> bool:
            return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None

        return cls(known, bool(app.state.enable_supernode_auth))

    async def refusal(self, scope: Scope) -> int | None:
        """401 without a good key; 429 to an address that was refused too often; None to a registered site."""
        if not self.enabled:
            return None
        if await run_in_threadpool(self._admitted, dict(scope.get("headers", ()))):
            return None
        address = str((scope.get("client") or ("",))[0])
        return 429 if self._count(address) > MOST_REFUSALS else 401

    def _admitted(self, headers: dict[bytes, bytes]) -> bool:
        try:
            key, signature = (
                b64decode(headers[name.lower().encode()], validate=True)
                for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
            )
            signed = headers[TIMESTAMP_HEADER.lower().encode()]
            age = (now() - datetime.datetime.fromisoformat(signed.decode("ascii"))).total_seconds()
            recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            return recent and self.known(key) and verify_signature(bytes_to_public_key(key), signed, signature)
        except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error):
            return False

    def _count(self, address: str) -> int:
        """How often an address was refused in the last minute, this time included."""
        now = time.monotonic()
        recent = [(one, told) for one, told in self._refused.items() if now - told[0] < _MINUTE]
        self._refused = dict(recent[-_MOST_ADDRESSES:])
        since, times = self._refused.get(address, (now, 0))
        self._refused[address] = (since, times + 1)
        return times + 1
