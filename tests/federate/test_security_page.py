"""Every threat in docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "security.md").read_text(encoding="utf-8")


def test_each_threat_has_a_test_that_exists() -> None:
    head, _, *rows = [line for line in PAGE.partition("## ")[0].splitlines() if line.startswith("|")]
    assert "`tests/federate/`" in head.split("|")[3] and len(rows) > 15
    for row in rows:
        _, threat, stopped_by, tests, _, _ = row.split("|")
        assert stopped_by.strip(), threat
        files = [HERE / name for name in re.findall(r"`([^`]+\.py)`", tests)]
        assert files, f"no test is named: {threat}"
        assert all("def test_" in file.resolve().read_text(encoding="utf-8") for file in files), threat
