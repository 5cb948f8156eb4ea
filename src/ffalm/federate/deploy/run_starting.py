"""How a SuperLink starts the processes of runs, where Flower's own way can leave a run waiting for ever.

Flower starts its SuperExec, which starts those processes, once and never looks again. And it gives each of them 30
seconds to report, then starts another beside it: on a busy machine none gets through.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from typing import Any

log = logging.getLogger("ffalm.federate")

_PAUSE = 2.0  # seconds; a SuperLink that ends has forgotten its SuperExec by then
_SECONDS_TO_START = 180.0
_SECONDS_OF_SILENCE = 60.0  # after which a process that has started is taken for dead, as in Flower


def allow_slow_starts() -> None:
    """Let the SuperLink of this process wait longer for a run's process to start."""
    from flwr.supercore.corestate import sql_corestate

    own = {
        "HEARTBEAT_DEFAULT_INTERVAL": _SECONDS_TO_START,
        "HEARTBEAT_PATIENCE": _SECONDS_OF_SILENCE / _SECONDS_TO_START,
    }
    vars(sql_corestate).update(own)  # the first is the time to start, their product that of silence


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

    SuperLinkLifespan._start_superexec_if_needed = start  # type: ignore[method-assign,assignment]
