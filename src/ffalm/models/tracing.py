"""Reading a module's graph by torch.fx, which changes `nn.Module` for all threads while it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from ffalm.system.torch_modes import TURN


class _Tracer(fx.Tracer):
    """Follows the calls of its own thread alone: modules of other threads compute meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


def graph_of(model: nn.Module) -> fx.Graph:
    """The operations of a module's forward pass, in the mode that it is in."""
    with TURN:  # two tracers at a time would leave `nn.Module` changed for good
        return _Tracer().trace(model)
