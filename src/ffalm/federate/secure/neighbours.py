"""Who is whose neighbour: a ring in random order in which each site knows the nearest, or all where there are few."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence


def ring(clients: Sequence[int], neighbours: int) -> dict[int, tuple[int, ...]]:
    """Each client's neighbours, itself not among them; being neighbours is mutual, and the order is drawn anew."""
    count = len(clients)
    if count <= neighbours + 1:
        return {client: tuple(other for other in sorted(clients) if other != client) for client in clients}
    order = list(clients)
    secrets.SystemRandom().shuffle(order)
    steps = [step for near in range(1, neighbours // 2 + 1) for step in (-near, near)]
    return {
        client: tuple(sorted(order[(place + step) % count] for step in steps)) for place, client in enumerate(order)
    }


def needed(circle: int, share: float) -> int:
    """How many of a site's circle, which is its neighbours and itself, must answer to the end; at least two."""
    return max(2, math.ceil(share * circle - 1e-9))
