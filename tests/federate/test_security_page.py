"""Every threat in docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "security.md").read_text(encoding="utf-8")


def threats() -> list[list[str]]:
    """The rows of the tables of threats, cell by cell."""
    found: list[list[str]] = []
    for table in re.findall(r"^\| threat \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        found += [line.split("|") for line in table.splitlines()]
    return found


def test_each_threat_has_a_test_that_exists() -> None:
    assert len(threats()) > 35
    for row in threats():
        _, threat, stopped_by, tests, _, _ = row
        assert stopped_by.strip(), threat
        files = [HERE / name for name in re.findall(r"`([^`]+\.py)`", tests)]
        assert files, f"no test is named: {threat}"
        assert all("def test_" in file.resolve().read_text(encoding="utf-8") for file in files), threat
