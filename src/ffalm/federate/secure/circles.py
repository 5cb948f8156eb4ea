"""Who is in whose circle in a secure sum, and how many of a circle must answer."""

from __future__ import annotations

import math
from collections.abc import Collection

from ffalm.federate.secure.crypto import digest


def needed(circle: int, share: float, everyone: int) -> int:
    """How many of a site's circle, which is its neighbours and itself, must answer to the end; at least two.

    Where circles are not of everyone, one more than most: with just over half of a circle, a coordinator that gives
    sites different lists could have a site's answer summed by one half and left out by the other.
    """
    least = 2 if circle >= everyone else circle // 2 + 2
    return max(least, math.ceil(share * circle - 1e-9))


def ring(run: str, clients: Collection[int], neighbours: int) -> dict[int, tuple[int, ...]]:
    """Each client's neighbours: all others if there are few, else the nearest around a ring; it is mutual.

    The order is as good as drawn, and the same for all sums of a run. Sites work it out themselves. A coordinator that
    could choose neighbours would choose circles that are joined to no other, and ask for sums over a few sites each.
    """
    count = len(clients)
    if count <= neighbours + 1:
        return {client: tuple(other for other in sorted(clients) if other != client) for client in sorted(clients)}
    order = sorted(clients, key=lambda client: digest(f"ffalm ring {run} {client}".encode()))
    steps = [step for near in range(1, neighbours // 2 + 1) for step in (-near, near)]
    return {
        client: tuple(sorted(order[(place + step) % count] for step in steps)) for place, client in enumerate(order)
    }
