"""Flower's SuperExec, which starts the processes of runs, started again where it has died.

The SuperLink starts it once and never looks again: without it a run waits for ever to begin.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from typing import Any

log = logging.getLogger("ffalm.federate")

_PAUSE = 2.0  # seconds; a SuperLink that ends has forgotten its SuperExec by then


def restart_executor() -> None:
    """Let the SuperLink of this process look after its SuperExec."""
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan

    original = SuperLinkLifespan._start_superexec_if_needed

    def start(lifespan: Any) -> None:
        original(lifespan)
        if lifespan.superexec_process is not None:
            threading.Thread(target=look_after, args=(lifespan, lifespan.superexec_process), daemon=True).start()

    def look_after(lifespan: Any, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        time.sleep(_PAUSE)
        if lifespan.superexec_process is process:
            log.warning("The SuperExec has died; it is started again.")
            start(lifespan)

    SuperLinkLifespan._start_superexec_if_needed = start  # type: ignore[method-assign]
