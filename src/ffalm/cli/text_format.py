"""Options for the text format of a file that a command reads."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from ffalm.errors import require

_format = partial(typer.Option, rich_help_panel="Text format of the file")
_SEPARATOR, _DECIMAL, _ENCODING = (
    "Column separator.",
    "Decimal separator, a dot or a comma.",
    "Encoding of the file, e.g. latin-1.",
)
_TRAINED = "Default: as of the file of training."

Separator = Annotated[str | None, _format(help=f"{_SEPARATOR} Default: detected from the header.")]
Decimal = Annotated[str | None, _format(help=f"{_DECIMAL} Default: a dot.")]
Encoding = Annotated[str | None, _format(help=f"{_ENCODING} Default: UTF-8.")]

TrainedSeparator = Annotated[str | None, _format(help=f"{_SEPARATOR} {_TRAINED}")]
TrainedDecimal = Annotated[str | None, _format(help=f"{_DECIMAL} {_TRAINED}")]
TrainedEncoding = Annotated[str | None, _format(help=f"{_ENCODING} {_TRAINED}")]


def text_format(separator: str | None, decimal: str | None, encoding: str | None) -> dict[str, Any]:
    """The given options, as arguments for readers of tables."""
    require(decimal in (None, ".", ","), f"--decimal takes a dot or a comma; got {decimal!r}.")
    given = {"separator": separator, "decimal": decimal, "encoding": encoding}
    return {name: value for name, value in given.items() if value is not None}
