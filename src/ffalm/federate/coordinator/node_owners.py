"""Whose key each node has, by the record of the keys that were let in (`registered.json`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ffalm.system.files import parsed_json


class NodeOwners(Mapping[int, str]):
    """Site names by node, read again where the file has changed: keys are added and replaced while a run goes on."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: tuple[tuple[int, int], dict[int, str]] | None = None

    def __getitem__(self, node: int) -> str:
        """The name of the site."""
        return self._now()[node]

    def __iter__(self) -> Iterator[int]:
        """The known nodes."""
        return iter(self._now())

    def __len__(self) -> int:
        """How many are known."""
        return len(self._now())

    def _now(self) -> dict[int, str]:
        try:
            seen = self._file.stat()
            version = (seen.st_mtime_ns, seen.st_ino)
            if self._read is None or self._read[0] != version:
                entries = parsed_json(self._file.read_text(encoding="utf-8"))
                owners = {int(entry["node"]): site for site, entry in entries.items() if entry["node"] is not None}
                self._read = version, owners
            return self._read[1]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
