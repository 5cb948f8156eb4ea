"""What Flower's SuperLink keeps on disk: registered keys and runs, never what a site answered.

Flower stores the content of every message in its database too. Here contents stay in memory, where they are dropped
once they are delivered: a SuperLink that restarts has lost the round under way anyway.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

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
