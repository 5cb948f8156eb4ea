"""How our SuperLink differs from Flower's: in what it stores on disk, and how it starts the processes of runs.

Flower stores the content of every message in its database. Here contents stay in memory, where they are dropped once
they are delivered: a SuperLink that restarts loses the current round anyway.

Flower starts its SuperExec, which starts the processes of runs, only once. And it gives each of them 30 seconds to
report, then starts another beside it: on a busy machine none is in time, and the run waits for ever.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

log = logging.getLogger("ffalm.federate")

_PAUSE = 2.0  # seconds; a SuperLink that ends has forgotten its SuperExec by then
_SECONDS_TO_START = 180.0
_SECONDS_OF_SILENCE = 60.0  # after which a process that has started is taken for dead, as in Flower
_CONTENTS = "objects"


def keep_contents_in_memory() -> None:
    """Let the SuperLink of this process write no message contents to its database."""
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink import config_loader

    def factory(database: str) -> ObjectStoreFactory:
        return ObjectStoreFactory()

    vars(config_loader)["ObjectStoreFactory"] = factory


def erase_contents(database: Path) -> None:
    """Delete the message contents that an earlier version of this package left in a database, free pages included."""
    if not database.exists():
        return
    with closing(sqlite3.connect(database, isolation_level=None)) as state:
        tables = {name for (name,) in state.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if _CONTENTS in tables and state.execute(f"SELECT 1 FROM {_CONTENTS} LIMIT 1").fetchone():
            state.execute("PRAGMA foreign_keys = ON")
            state.execute("PRAGMA secure_delete = ON")
            state.execute(f"DELETE FROM {_CONTENTS}")
        if state.execute("PRAGMA freelist_count").fetchone()[0]:
            state.execute("VACUUM")
        state.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def registered_nodes(database: Path) -> dict[str, int]:
    """The nodes whose keys a SuperLink lets in, by the keys' fingerprints, whoever registered them."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as state:
        rows = state.execute("SELECT public_key, node_id FROM node WHERE status != 'unregistered'").fetchall()
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    keys = [(load_pem_public_key(key).public_bytes(*form), node) for key, node in rows]
    return {hashlib.sha256(key).hexdigest(): node % 2**64 for key, node in keys}  # Flower stores them signed


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
