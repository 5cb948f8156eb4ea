"""Ray's token authentication for a session on this machine.

Ray listens on every interface and runs whatever code it is sent. With a token that only this process and its children
know, nobody else is let in.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_VARIABLES = (_MODE, _TOKEN, "RAY_AUTH_TOKEN_PATH")


@contextmanager
def own_token() -> Iterator[None]:
    """A fresh token for the processes that Ray starts inside; where the user has set Ray's variables, those hold."""
    if any(name in os.environ for name in _VARIABLES):
        yield
        return
    os.environ |= {_MODE: "token", _TOKEN: secrets.token_hex(32)}
    _reload()
    try:
        yield
    finally:
        for name in _VARIABLES:
            os.environ.pop(name, None)
        _reload()


def _reload() -> None:
    """Let Ray read the variables again: it does so once, when it is imported."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
