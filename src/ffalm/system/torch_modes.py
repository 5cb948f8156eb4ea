"""Settings that torch keeps for a whole program or thread, on which a computation must not depend."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: Held while we set torch's generators, number of threads or cuDNN settings, which all threads share.
TURN = threading.RLock()
if hasattr(os, "register_at_fork"):  # in a forked process no thread is left to release it
    os.register_at_fork(after_in_child=TURN._at_fork_reinit)  # type: ignore[attr-defined]


@contextmanager
def usual_modes() -> Iterator[None]:
    """Run a block with torch's defaults, whatever the caller has set.

    They are gradients, full precision, and the CPU as the default device.
    """
    import torch

    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # checked first, since a default device slows down every call
            modes.enter_context(torch.device("cpu"))
        yield
