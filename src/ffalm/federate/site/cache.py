"""A site's encoded rows and terms in its own folder, from which a new process reads them in milliseconds."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ffalm.data.compact_features import as_tensors, from_tensors
from ffalm.data.types import Examples
from ffalm.engines.jobs import Model
from ffalm.federate.federation_config import LocalTable, SiteConfig
from ffalm.federate.terms import SiteTerms
from ffalm.studies.store import flat_tensors, nested_tensors
from ffalm.system.files import write_atomic

Parts = dict[str, Examples]
"""The encoded rows of each part: "train", "validation" and "test"."""


class SiteCache:
    """Files that a site keeps between two questions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ".cache"
        self._agreed, self._floor = folder / "agreed.json", folder / "agreed.min_group"

    def keep_terms(self, terms: SiteTerms, min_group: int) -> None:
        """Keep the agreed terms, and the `min_group` under which the rows were reported."""
        write_atomic(self._agreed, terms.to_text())
        write_atomic(self._floor, str(min_group))

    def told_under(self) -> str | None:
        """The `min_group` under which the rows were reported, as it was written; None if that was not noted."""
        return self._floor.read_text(encoding="utf-8") if self._floor.exists() else None

    def terms(self) -> SiteTerms | None:
        """The terms that were agreed last; None if there are none."""
        if not self._agreed.exists():
            return None
        return SiteTerms.from_text(self._agreed.read_text(encoding="utf-8"))

    def keep_client_vectors(self, terms: SiteTerms, round: int, counted: int, vectors: dict[str, Model]) -> None:
        """Keep the client's own vectors after a round, and those after the last round that counted.

        Whether this round counts is known only from the next question: the answer may be late or rejected, and a
        coordinator that was stopped asks for its last round again. Both start from the earlier vectors.
        """
        if vectors:
            before, now = (self._vector_file(terms, number) for number in (counted, round))
            self._write(now, flat_tensors(vectors), "client-*.vectors", before)

    def client_vectors(self, terms: SiteTerms, counted: int) -> dict[str, Model]:
        """The client's own vectors after its last round that counted; empty before its first."""
        path = self._vector_file(terms, counted)
        stored = load_file(path) if path.exists() else {}
        return nested_tensors({name: value.clone() for name, value in stored.items()})

    def _vector_file(self, terms: SiteTerms, round: int) -> Path:
        return self._folder / f"client-{terms.run_key}-{round:06d}.vectors"

    def keep_outputs(self, key: str, outputs: Model) -> None:
        """Keep models' outputs on this site's rows, and delete those of other models or rows."""
        self._write(self._outputs(key), outputs, "*.outputs")

    def outputs(self, key: str) -> Model | None:
        """The kept outputs; None if they are gone, or if the rows have changed since."""
        try:
            return load_file(self._outputs(key))
        except (OSError, SafetensorError):
            return None

    def _outputs(self, key: str) -> Path:
        return self._folder / f"{key}.outputs"

    def keep(self, key: str, parts: Parts) -> None:
        """Keep encoded rows in the site's folder, and delete those that they replace."""
        self._write(self._folder / f"{key}.safetensors", _flat(parts), "*.safetensors")

    def rows(self, key: str) -> Parts | None:
        """The encoded rows with that key; None if there are none or the file is damaged.

        They are copied: how kernels round depends on the alignment of memory, and results must not change.
        """
        try:
            flat = {name: value.clone() for name, value in load_file(self._folder / f"{key}.safetensors").items()}
            names = dict.fromkeys(name.partition(".")[0] for name in flat)
            return {name: _examples(flat, name) for name in names}
        except (OSError, SafetensorError, KeyError):
            return None

    def _write(self, path: Path, tensors: Model, kind: str, *kept: Path) -> None:
        """Write tensors to a file, and delete all others of its kind except `kept`."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, save({name: value.cpu().contiguous() for name, value in tensors.items()}))
        for other in self._folder.glob(kind):
            if other not in (path, *kept):
                with contextlib.suppress(OSError):
                    other.unlink()


def rows_key(site: SiteConfig, terms: SiteTerms, folder: Path) -> str:
    """A fingerprint of these rows under this encoding: the files' state, the split and the agreed terms."""
    agreed = [asdict(terms.task), terms.encoding, terms.data.source, asdict(terms.data)]
    mine = [asdict(site.data), asdict(site.split), _stamp(site, folder)]
    return hashlib.sha256(json.dumps([agreed, mine]).encode()).hexdigest()[:24]


def _stamp(site: SiteConfig, folder: Path) -> list[object]:
    """The size and time of every file that the rows come from."""
    if isinstance(site.data, LocalTable):
        return [_status(folder / Path(site.data.file).expanduser())]
    images = folder / Path(site.data.folder).expanduser()
    inside = sorted(Path(root) / name for root, _, names in os.walk(images) for name in names)
    return [_status(folder / Path(site.data.labels).expanduser()), *(_status(path) for path in inside)]


def _status(path: Path) -> list[object]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_size, status.st_mtime_ns]


def _flat(parts: Parts) -> dict[str, Tensor]:
    return {
        f"{part}.{name}": value
        for part, rows in parts.items()
        for name, value in {**as_tensors(rows.x), "y": rows.y, "group": rows.group}.items()
    }


def _examples(flat: Mapping[str, Tensor], part: str) -> Examples:
    own = {name.removeprefix(f"{part}."): value for name, value in flat.items() if name.startswith(f"{part}.")}
    return Examples(from_tensors(own), own["y"], own["group"])
