"""HTML that cannot be broken by the text in it: everything that is not markup already is escaped.

A study's title, labels and notes come from files and flags; a page must show them, never run them.
"""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | int | bool | None) -> Markup:
    """One element: children escaped unless they are markup, attributes always; None and False leave one out.

    A trailing underscore lets an attribute be called `class_`; inner ones become hyphens, as in `aria_label`.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def _attribute(key: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
