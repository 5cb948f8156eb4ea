"""What sites' answers in secure sums say, where they make sense."""

from __future__ import annotations

from ffalm.engines.remote.message import Message
from ffalm.system.files import parsed_json


def unusable_clients(answer: Message) -> list[int]:
    """The clients whose keys or offers a site says it cannot use; none where it makes no sense."""
    try:
        return [int(client) for client in parsed_json(str(answer.facts["unusable"]))]
    except (KeyError, ValueError, TypeError):
        return []


def told_shares(answer: Message) -> dict[int, bytes]:
    """The shares in an answer; none where it makes no sense."""
    try:
        told = parsed_json(str(answer.facts["shares"]))
        return {int(client): bytes.fromhex(share) for client, share in told.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
