"""The Jinja2 environment of the page: templates and assets lie in `assets/`, and every value is escaped.

A study's title, labels and notes come from files and flags; a page must show them, never run them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """The environment in which all templates are rendered."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("ffalm.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(name: str) -> str:
    """The source of a file in `assets/`, such as a script or a style sheet."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]
