"""What sites' answers in secure sums contain."""

from __future__ import annotations

from ffalm.engines.remote.message import Message
from ffalm.system.files import parsed_json


def unusable_clients(answer: Message) -> list[int]:
    """The clients whose keys or offers a site reports that it cannot use; none if this is malformed."""
    try:
        return [int(client) for client in parsed_json(str(answer.facts["unusable"]))]
    except (KeyError, ValueError, TypeError):
        return []


def revealed_shares(answer: Message) -> dict[int, bytes]:
    """The shares in an answer, by the client whose secret they are of; none if they are malformed."""
    try:
        shares = parsed_json(str(answer.facts["shares"]))
        return {int(client): bytes.fromhex(share) for client, share in shares.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}
