"""HTML that notebooks show for objects: a heading and a data frame as a table, with every text escaped."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_ROWS = 20


def frame_html(heading: str, frame: DataFrame, notes: tuple[str, ...] = ()) -> str:
    """A heading, the first rows of a table to four digits, and sentences below it."""
    left = len(frame) - _MOST_ROWS
    below = [*([f"... and {left:,} more"] if left > 0 else []), *notes]
    table = frame.head(_MOST_ROWS).to_html(float_format=lambda value: f"{value:.4g}", na_rep="undefined", border=0)
    return f"<p><b>{html.escape(heading)}</b></p>{table}" + "".join(f"<p>{html.escape(note)}</p>" for note in below)
