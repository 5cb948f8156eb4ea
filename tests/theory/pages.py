"""Reading tables as docs/theory.md shows them."""

from __future__ import annotations

import re

from ffalm.report.rendering import to_markdown
from ffalm.report.tables import Table


def table_lines(table: Table) -> list[str]:
    """The lines of a table in Markdown, without the escapes that the page does not need."""
    lines = to_markdown(table).splitlines()
    return [re.sub(r"\\(.)", r"\1", line) for line in lines if line.startswith("|")]
