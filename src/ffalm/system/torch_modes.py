"""What torch keeps for a whole program or thread, and a computation must not depend on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

#: Held while torch's generators, number of threads or settings of cuDNN are ours: all threads share one of each.
TURN = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked process has none of the threads that could give their turn back
    os.register_at_fork(after_in_child=TURN._at_fork_reinit)  # type: ignore[attr-defined]


@contextmanager
def usual_modes() -> Iterator[None]:
    """Run a block as torch computes in a new program, whatever the caller has set.

    That is with gradients, in full precision, and on the CPU where no device is named.
    """
    import torch

    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # asked first, since a default device slows every call down
            modes.enter_context(torch.device("cpu"))
        yield
