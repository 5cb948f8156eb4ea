"""An extension of griffe, named in mkdocs.yml: signatures show defaults of settings, not the calls that make fields."""

from __future__ import annotations

from typing import Any

import griffe


class PlainDefaults(griffe.Extension):
    """`penalty = setting(2.0, "Coefficient.", least=0)` is shown as `penalty = 2.0`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace the call by its first argument."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "setting":
            attr.value = value.arguments[0]
