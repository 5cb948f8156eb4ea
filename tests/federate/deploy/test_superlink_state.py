"""The coordinator's database holds keys and runs; what sites answer is not on its disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ffalm.federate.deploy import superlink_state

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")


def test_message_contents_stay_in_memory_while_keys_and_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
    from flwr.superlink import config_loader
    from flwr.superlink.federation import NoOpFederationManager

    monkeypatch.setattr(config_loader, "ObjectStoreFactory", vars(config_loader)["ObjectStoreFactory"])
    superlink_state.keep_contents_in_memory()
    database = str(tmp_path / "state.db")
    contents, states = config_loader.get_objectstore_linkstate_factories(database, NoOpFederationManager())
    assert isinstance(contents.store(), InMemoryObjectStore)
    assert states.database == database and states.objectstore_factory is contents


def test_contents_that_an_earlier_version_stored_are_erased_with_their_free_pages(tmp_path: Path) -> None:
    database, answer = tmp_path / "state.db", b"an answer of one site"
    with closing(sqlite3.connect(database)) as state:
        state.execute("PRAGMA journal_mode = WAL")
        state.execute("CREATE TABLE objects (object_id TEXT, content BLOB)")
        state.execute("CREATE TABLE node (node_id INTEGER)")
        state.execute("INSERT INTO node VALUES (7)")
        for number in range(4):
            state.execute("INSERT INTO objects VALUES (?, ?)", (str(number), answer * 1000))
        state.commit()
        state.execute("DELETE FROM objects WHERE object_id < '2'")
        state.commit()
    superlink_state.erase_contents(database)
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert answer not in left
    with closing(sqlite3.connect(database)) as state:
        assert state.execute("SELECT * FROM node").fetchall() == [(7,)]
    superlink_state.erase_contents(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
