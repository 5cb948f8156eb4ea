"""Decoding of image files: every image becomes square RGB pixels of one size.

Decoding runs in threads, not processes: Pillow releases the interpreter lock while it decompresses and resizes,
and threads need neither pickling nor a `__main__` guard in the user's script.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ffalm.errors import UserError
from ffalm.system.hardware import cores

#: Part of every cache's fingerprint. Increase it whenever the same file would give other pixels.
DECODER_VERSION = 1

#: The names of image files end in one of these, in small or capital letters.
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff")

Crop = Literal["centre", "none"]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Recipe:
    """To `size` x `size` pixels, from the centred square (`centre`) or squeezed from the whole (`none`)."""

    size: int
    crop: Crop = "centre"

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 1024:
            raise UserError(f"The image size must be between 8 and 1024 pixels; got {self.size}.")
        if self.crop not in ("centre", "none"):
            raise UserError(f"The crop must be 'centre' or 'none'; got {self.crop!r}.")

    @property
    def chunk(self) -> int:
        """Images per task: enough to make scheduling negligible, at most about 16 MB of pixels."""
        return max(1, min(128, 2**24 // (3 * self.size**2)))


@dataclass(frozen=True)
class Chunk:
    """Some consecutive images. A file that cannot be decoded has black pixels and a reason in `bad`."""

    pixels: Pixels  # (rows, 3, size, size)
    contents: list[str]  # a digest of each file's bytes: equal files have equal digests
    bad: dict[int, str]  # row in this chunk -> why it could not be decoded


def decode_all(paths: Sequence[Path], recipe: Recipe) -> Iterator[Chunk]:
    """Decode files in parallel and yield them in order, view only a few chunks at a time."""
    workers = cores()
    waiting: deque[Future[Chunk]] = deque()
    executor = ThreadPoolExecutor(workers, thread_name_prefix="ffalm-decode")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # images twice as large are refused
            for start in range(0, len(paths), recipe.chunk):
                waiting.append(executor.submit(_decode_chunk, paths[start : start + recipe.chunk], recipe))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def decode_bytes(content: bytes, recipe: Recipe) -> Pixels:
    """The pixels (3, size, size) of one encoded image, upright and in RGB.

    Large JPEGs are downscaled during decompression, but never below three times the requested size, so that the result
    is determined by the antialiased bilinear resize.
    """
    with Image.open(io.BytesIO(content)) as opened:
        opened.draft(None, (3 * recipe.size, 3 * recipe.size))
        opened.load()
        picture = _as_rgb(_upright(opened))
    square = _centre(picture) if recipe.crop == "centre" else picture
    resized = square.resize((recipe.size, recipe.size), Image.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8).transpose(2, 0, 1)


def _decode_chunk(paths: Sequence[Path], recipe: Recipe) -> Chunk:
    pixels = np.zeros((len(paths), 3, recipe.size, recipe.size), dtype=np.uint8)
    contents: list[str] = []
    bad: dict[int, str] = {}
    for row, path in enumerate(paths):
        content = read_image(path)
        contents.append(hashlib.blake2b(content, digest_size=16).hexdigest())
        try:
            pixels[row] = decode_bytes(content, recipe)
        except MemoryError:
            raise
        except Exception as error:  # Pillow's plugins raise nearly anything on broken bytes
            bad[row] = why_broken(content, error)
    return Chunk(pixels, contents, bad)


def read_image(path: Path) -> bytes:
    """The file's bytes; an I/O error is raised instead of marking the image as bad, because it may be temporary."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a file")
        return path.read_bytes()
    except OSError as error:
        public = "Some of its images cannot be read."
        raise UserError(f"Cannot read the image {path}: {error.strerror or error}.", public) from error


def why_broken(content: bytes, error: Exception) -> str:
    """The reason why a file's bytes could not be decoded, in words."""
    if not content:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    return str(error) or type(error).__name__


def _upright(picture: Image.Image) -> Image.Image:
    """The image rotated by its EXIF orientation; unreadable EXIF data is ignored."""
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:
        return picture


def _as_rgb(picture: Image.Image) -> Image.Image:
    """Grey, palette, CMYK, 16-bit and transparent images as RGB, on a white background."""
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith("I"):
        deep = np.asarray(picture).astype(np.int64)
        picture = Image.fromarray((deep.clip(0, 65535) // 257).astype(np.uint8))
    if picture.mode == "F":
        raise ValueError("pixels are floating-point numbers of unknown range")
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    return picture.convert("RGB")


def _centre(picture: Image.Image) -> Image.Image:
    """The centred square, cropped before resizing, so that the filter does not use pixels outside of it."""
    width, height = picture.size
    if width == height:
        return picture
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return picture.crop((left, top, left + side, top + side))
