"""The coordinator's calls to its SuperLink by Flower's command."""

from __future__ import annotations

import pytest

from ffalm.federate.deploy.control import _reason


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Using SuperLink: federation (127.0.0.1:1)\n\nConnection refused.\nTry again.", "Connection refused."),
        ("Configuration warnings:\n- no license\nUsing SuperLink: federation (127.0.0.1:1)\nNo disk.", "No disk."),
        ("Public key already in use", "Public key already in use"),
        ("Using SuperLink: federation (127.0.0.1:1)\n", "no reason given"),
    ],
)
def test_the_reason_of_a_refusal_is_what_comes_after_warnings(words: str, reason: str) -> None:
    assert _reason(words) == reason
