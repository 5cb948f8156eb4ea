from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffalm.data import imagecache
from ffalm.data.decode import Chunk, Recipe, decode_all
from ffalm.data.imagecache import load_images
from ffalm.errors import UserError

RECIPE = Recipe(8)


@pytest.fixture
def shades(tmp_path: Path) -> Path:
    """A folder of ten pictures, each of one shade."""
    folder = tmp_path / "shades"
    folder.mkdir()
    for shade in range(10):
        Image.new("L", (8, 8), shade).save(folder / f"{shade}.png")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def first_pixels(folder: Path) -> list[int]:
    return [int(value) for value in load_images(folder, names(folder), RECIPE).pixels[:, 0, 0, 0]]


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one every time pictures are really decoded."""
    seen: list[int] = []

    def counted(paths: list[Path], recipe: Recipe) -> Iterator[Chunk]:
        seen.append(len(paths))
        return decode_all(paths, recipe)

    monkeypatch.setattr(imagecache, "decode_all", counted)
    return seen


def test_pictures_are_decoded_once(shades: Path, decodings: list[int], cache: Path) -> None:
    assert first_pixels(shades) == first_pixels(shades) == list(range(10))
    assert decodings == [10]
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".lock", ".npy"]


def test_a_changed_picture_is_decoded_again_and_the_old_cache_removed(
    shades: Path, decodings: list[int], cache: Path
) -> None:
    first_pixels(shades)
    old = {path.name for path in cache.glob("*.npy")}
    Image.new("L", (8, 8), 99).save(shades / "3.png")
    assert first_pixels(shades)[3] == 99
    assert len(decodings) == 2
    new = {path.name for path in cache.glob("*.npy")}
    assert len(new) == 1
    assert new != old


def test_a_change_that_keeps_size_and_time_is_noticed(shades: Path) -> None:
    before = (shades / "3.png").stat()
    first_pixels(shades)
    picture = shades / "3.png"
    Image.new("L", (8, 8), 99).save(picture)
    os.utime(picture, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first_pixels(shades)[3] == 99


@pytest.mark.parametrize("change", ["size", "crop", "fewer", "version"])
def test_another_recipe_choice_or_decoder_is_another_cache(
    change: str, shades: Path, decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = names(shades)
    load_images(shades, listed, RECIPE)
    if change == "version":
        monkeypatch.setattr(imagecache, "DECODER_VERSION", 10**6)
    recipe = {"size": Recipe(9), "crop": Recipe(8, "none")}.get(change, RECIPE)
    load_images(shades, listed[:9] if change == "fewer" else listed, recipe)
    assert len(decodings) == 2


def test_a_new_cache_folder_is_closed_to_other_users(
    shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFALM_CACHE", str(tmp_path / "new"))
    first_pixels(shades)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_two_folders_never_share_a_cache(shades: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in names(shades):
        Image.new("L", (8, 8), 200).save(other / name)
        stamp = (shades / name).stat()
        os.utime(other / name, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    first_pixels(shades)
    assert first_pixels(other) == [200] * 10


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def scribble(file: Path) -> None:
    file.write_bytes(b"scribble" * 50)


def pickle(file: Path) -> None:
    np.save(file, np.array([{"run": "me"}], dtype=object), allow_pickle=True)


def other_shape(file: Path) -> None:
    np.save(file, np.zeros((10, 3, 8, 7), dtype=np.uint8))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, scribble, pickle, other_shape, flip, Path.unlink])
def test_a_damaged_array_is_made_again(
    damage: Callable[[Path], None], shades: Path, decodings: list[int], cache: Path
) -> None:
    first_pixels(shades)
    damage(next(cache.glob("*.npy")))
    assert first_pixels(shades) == list(range(10))
    assert len(decodings) == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fingerprint": "x", "contents": [], "bad": {}}'])
def test_a_damaged_description_is_made_again(text: str, shades: Path, decodings: list[int], cache: Path) -> None:
    first_pixels(shades)
    next(cache.glob("*.json")).write_text(text)
    assert first_pixels(shades) == list(range(10))
    assert len(decodings) == 2


def test_bad_pictures_are_remembered_with_their_reasons(shades: Path, decodings: list[int]) -> None:
    (shades / "4.png").write_bytes(b"text")
    first, again = (load_images(shades, names(shades), RECIPE) for _ in range(2))
    assert first.bad == again.bad == {4: "not an image"}
    assert first.contents == again.contents
    assert decodings == [10]


def test_a_missing_file_is_named(shades: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot find the image .*gone\.png"):
        load_images(shades, ["gone.png"], RECIPE)


def test_nothing_is_left_in_the_cache_when_decoding_fails(
    shades: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(paths: list[Path], recipe: Recipe) -> Iterator[Chunk]:
        yield Chunk(np.zeros((5, 3, 8, 8), np.uint8), ["x"] * 5, {})
        raise UserError("stop")

    monkeypatch.setattr(imagecache, "decode_all", failing)
    with pytest.raises(UserError, match="stop"):
        load_images(shades, names(shades), RECIPE)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_full_disk_costs_only_the_cache(shades: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    loaded = load_images(shades, names(shades), RECIPE)
    assert loaded.pixels[:, 0, 0, 0].tolist() == list(range(10))
    assert "No space left" in loaded.notes[0]
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_cache_folder_that_cannot_be_made_costs_only_the_cache(
    shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FFALM_CACHE", str(tmp_path / "file" / "cache"))
    loaded = load_images(shades, names(shades), RECIPE)
    assert loaded.pixels[:, 0, 0, 0].tolist() == list(range(10))
    assert "FFALM_CACHE" in loaded.notes[0]


def test_a_file_system_without_locks_still_caches(
    shades: Path, decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert first_pixels(shades) == first_pixels(shades) == list(range(10))
    assert decodings == [10]


#: Loads the folder named by its argument, decoding slowly; tells on stdout when it begins and what it got.
CHILD = """
import sys, time
from pathlib import Path
from ffalm.data import imagecache
from ffalm.data.decode import Recipe

original = imagecache.decode_all
def slow(paths, recipe):
    for chunk in original(paths, recipe):
        print("decoding", flush=True)
        time.sleep(float(sys.argv[2]))
        yield chunk
imagecache.decode_all = slow
folder = Path(sys.argv[1])
names = sorted(path.name for path in folder.iterdir())
loaded = imagecache.load_images(folder, names, Recipe(8))
print("loaded", [int(value) for value in loaded.pixels[:, 0, 0, 0]], loaded.notes, flush=True)
"""


def child(folder: Path, seconds: float) -> subprocess.Popen[str]:
    source = Path(imagecache.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


def test_two_processes_at_once_do_the_work_once(shades: Path, cache: Path) -> None:
    both = [child(shades, 1.5), child(shades, 1.5)]
    outputs = [ended(process) for process in both]
    assert all(f"loaded {list(range(10))} ()" in output for output in outputs)
    assert sum(output.count("decoding") for output in outputs) == 1
    assert len(list(cache.glob("*.npy"))) == 1


def test_a_process_killed_midway_leaves_nothing_that_is_believed_and_blocks_nobody(
    shades: Path, cache: Path, decodings: list[int]
) -> None:
    process = child(shades, 60)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "decoding\n"
        deadline = time.monotonic() + 30
        while not list(cache.glob("*.tmp")) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert list(cache.glob("*.tmp"))
    assert not list(cache.glob("*.json"))
    started = time.monotonic()
    assert first_pixels(shades) == list(range(10))
    assert time.monotonic() - started < 10
    assert decodings == [10]
    assert not list(cache.glob("*.tmp"))


def test_a_kill_between_the_two_renames_leaves_nothing_that_is_believed(
    shades: Path, cache: Path, decodings: list[int]
) -> None:
    first_pixels(shades)
    about = next(cache.glob("*.json"))
    assert json.loads(about.read_text())["bad"] == {}
    about.unlink()
    np.save(next(cache.glob("*.npy")), np.zeros((10, 3, 8, 8), np.uint8))
    assert first_pixels(shades) == list(range(10))
    assert len(decodings) == 2
