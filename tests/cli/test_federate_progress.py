"""The lines that the terminal shows while a federation trains."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ffalm.cli.federate_progress import RoundLines

LOST = "lost: The site is not connected."
LACKS = "failed: The site 'north' has no key of 'south': south must send it its node.pub."


def record(round: int, missed: dict[str, str], quarantined: dict[str, str]) -> dict[str, Any]:
    return {"round": round, "seconds": 1.0, "epsilon": 1.0, "missed": missed, "quarantined": quarantined}


def test_a_site_that_does_not_count_is_named_once_with_each_reason() -> None:
    console = Console(file=io.StringIO(), width=40)
    lines = RoundLines(console, {"training": {"rounds": 5}})
    history = [
        record(1, {"north": LACKS}, {}),
        record(2, {"north": LACKS}, {"west": "its losses are not finite"}),
        record(3, {"north": LOST}, {"west": "its losses are not finite"}),
        record(4, {}, {}),
        record(5, {"north": LOST}, {}),
    ]
    for shown in range(1, 6):
        lines.show(history[:shown])
    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line for line in told if not line.startswith("round")] == [
        f"Without the site 'north': {LACKS}",
        "Without the site 'west': its losses are not finite.",
        f"Without the site 'north': {LOST}",
        f"Without the site 'north': {LOST}",
    ]
    assert told[1].startswith("Without") and told[3].startswith("Without")
