"""Coverage-guided fuzzing of what reads files and messages, by atheris: it keeps inputs that reach new code.

    pip install atheris
    python -m tests.fuzzing.guided table -max_total_time=600

The target is table, config, message or folder; flags after it are those of libFuzzer. It starts from small inputs that
are made here and from those in `found/`, where an input that was once refused with a traceback is kept.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

FOUND = Path(__file__).parent / "found"
Target = Callable[[bytes], None]
_ENDINGS = (".csv", ".parquet", ".csv.gz", ".tsv")
_FILES = ("study.json", "config.toml", "result.json", "history.jsonl", "checksums.json", "encoding.json")


def table(here: Path) -> Target:
    """The first byte says what the file is called, the others are its content."""
    import ffalm

    def read(data: bytes) -> None:
        path = here / f"fuzzed{_ENDINGS[data[0] % len(_ENDINGS)] if data else '.csv'}"
        path.write_bytes(data[1:])
        repr(ffalm.load(path, label="paid", group="sex", favourable=1, clients=2, min_rows=1))

    return read


def config(here: Path) -> Target:
    """A configuration file, read and checked."""
    from ffalm.config import parse
    from ffalm.config import read as read_file

    def read(data: bytes) -> None:
        path = here / "fuzzed.toml"
        path.write_bytes(data)
        parse(read_file(path))

    return read


def message(here: Path) -> Target:
    """The first byte says which reader of messages the others are for."""
    import torch

    from ffalm.data.types import Task
    from ffalm.engines.remote.message import Message
    from ffalm.federate.description import Description
    from ffalm.federate.histogram_bytes import unpacked_histograms
    from ffalm.federate.secure.misdealing import Misdealing
    from ffalm.federate.secure.protocol import Circle, Offer
    from ffalm.federate.secure.secure_answers import revealed_shares
    from ffalm.federate.terms import SiteTerms

    def histogram(text: str) -> object:
        return unpacked_histograms(torch.frombuffer(bytearray(text.encode() or b"x"), dtype=torch.uint8), Task("t"))

    readers: list[Callable[[str], object]] = [
        Description.from_json,
        SiteTerms.from_text,
        Offer.from_text,
        Circle.from_text,
        lambda text: revealed_shares(Message(facts={"shares": text})),
        histogram,
        Misdealing.from_text,
    ]

    def read(data: bytes) -> None:
        if data:
            readers[data[0] % len(readers)](data[1:].decode("utf-8", "replace"))

    return read


def folder(here: Path) -> Target:
    """The first byte says which file of a run folder has the others as its content."""
    from tests.fuzzing.commands import prepare_files, train

    from ffalm.studies.results import Study

    prepare_files(here)
    study = train(here)
    paths = [path for name in _FILES for path in sorted(study.rglob(name))]

    def read(data: bytes) -> None:
        if not data:
            return
        path = paths[data[0] % len(paths)]
        before = path.read_bytes()
        path.write_bytes(data[1:])
        try:
            loaded = Study.load(study)
            repr(loaded), loaded.table()
        finally:
            path.write_bytes(before)

    return read


TARGETS: dict[str, Callable[[Path], Target]] = {"table": table, "config": config, "message": message, "folder": folder}


def beginnings(name: str) -> Iterator[bytes]:
    """Small sound inputs, and what was found before."""
    rows = "\n".join(f"{i % 7},{'mf'[i % 2]},{i % 3 % 2}" for i in range(40))
    if name == "table":
        import pandas as pd

        yield b"\0" + f"a,sex,paid\n{rows}\n".encode()
        written = io.BytesIO()
        pd.read_csv(io.StringIO(f"a,sex,paid\n{rows}\n")).to_parquet(written)
        yield b"\1" + written.getvalue()
    if name == "config":
        yield b"seeds = [0]\n[data]\nsource = 'census'\nrows = 300\n[algorithms.fedavg]\n[training]\nlr = 0.1\n"
    if name == "message":
        told = {"source": "table", "labels": ["a"], "groups": ["b", "c"], "kinds": {"x": "numbers"}, "size": None,
                "columns": '{"x": {"count": 3, "total": 1.5, "squares": 2.0}}', "ungrouped": False}  # fmt: skip
        yield b"\0" + json.dumps(told).encode()
        offer = {"mask_key": "ab", "signature": "cd", "sealed": {"1": "ef"}, "digests": {"0": ["a", "b"]}}
        yield b"\2" + json.dumps(offer).encode()
        yield b'\4{"1": "00ff"}'
    if name == "folder":
        yield b'\2{"label": "fedavg", "test": {}, "intervals": {}}'
    yield from (path.read_bytes() for path in sorted(FOUND.glob(f"{name}-*")))


def refused_or_read(target: Target, data: bytes) -> None:
    """Raise unless an input is read, or refused with an error of the project's own."""
    from ffalm import UserError

    with suppress(UserError):
        target(data)


def main() -> None:
    """Fuzz one target until the flags of libFuzzer say to stop, or something is found."""
    import atheris

    name, flags = sys.argv[1], sys.argv[2:]
    with atheris.instrument_imports(include=["ffalm"]):
        pass
    with tempfile.TemporaryDirectory() as made:
        here, corpus = Path(made), Path(made) / "corpus"
        corpus.mkdir()
        for number, data in enumerate(beginnings(name)):
            (corpus / str(number)).write_bytes(data)
        with atheris.instrument_imports(include=["ffalm"]):
            target = TARGETS[name](here)
        os.chdir(made)
        atheris.Setup([sys.argv[0], *flags, str(corpus)], lambda data: refused_or_read(target, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
