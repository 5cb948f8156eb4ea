from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ffalm.data.decode import Recipe, decode_all, decode_bytes
from ffalm.errors import UserError


def encoded(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def striped(width: int, height: int) -> Image.Image:
    """Red left of the centred square, green in it, blue right of it."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    side = min(width, height)
    left = (width - side) // 2
    pixels[:, :left, 0] = pixels[:, left : left + side, 1] = pixels[:, left + side :, 2] = 255
    return Image.fromarray(pixels)


def test_pixels_come_channels_first() -> None:
    red = Image.new("RGB", (16, 16), (200, 10, 30))
    pixels = decode_bytes(encoded(red), Recipe(8))
    assert pixels.shape == (3, 8, 8)
    assert pixels.dtype == np.uint8
    assert [int(pixels[channel].max()) for channel in range(3)] == [200, 10, 30]
    assert [int(pixels[channel].min()) for channel in range(3)] == [200, 10, 30]


def test_a_picture_of_the_right_size_is_left_alone() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    pixels = decode_bytes(encoded(Image.fromarray(noise)), Recipe(16))
    assert np.array_equal(pixels.transpose(1, 2, 0), noise)


@pytest.mark.parametrize(("width", "height"), [(40, 20), (41, 20)])
def test_the_centre_crop_keeps_only_the_centred_square(width: int, height: int) -> None:
    pixels = decode_bytes(encoded(striped(width, height)), Recipe(20))
    assert (pixels[1] == 255).all()
    assert not pixels[[0, 2]].any()


def test_celeba_is_cropped_to_its_usual_178_pixels() -> None:
    pixels = np.zeros((218, 178, 3), dtype=np.uint8)
    pixels[20:198] = 255
    assert (decode_bytes(encoded(Image.fromarray(pixels)), Recipe(64)) == 255).all()


def test_without_a_crop_the_whole_picture_is_squeezed() -> None:
    pixels = decode_bytes(encoded(striped(40, 20)), Recipe(20, "none"))
    assert (pixels[0, :, 0] == 255).all()
    assert (pixels[2, :, -1] == 255).all()


def test_shrinking_averages_instead_of_picking_pixels() -> None:
    board = np.indices((64, 64)).sum(axis=0) % 2 * 255
    pixels = decode_bytes(encoded(Image.fromarray(board.astype(np.uint8))), Recipe(8))
    assert np.abs(pixels.astype(int) - 127).max() <= 3


def test_large_photographs_are_decoded_like_small_ones() -> None:
    ramp = np.linspace(0, 255, 1600).astype(np.uint8)
    photo = Image.fromarray(np.broadcast_to(ramp[None, :, None], (1600, 1600, 3)).copy())
    quick = decode_bytes(encoded(photo, "JPEG", quality=95), Recipe(16)).astype(int)
    exact = decode_bytes(encoded(photo), Recipe(16)).astype(int)
    assert np.abs(quick - exact).max() <= 4


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_every_kind_of_picture_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    if mode == "I;16":
        white = Image.fromarray(np.full((16, 16), 65535, np.uint16))
    else:
        white = Image.new("RGB", (16, 16), "white").convert(mode)
    pixels = decode_bytes(encoded(white, kind), Recipe(8))
    assert pixels.shape == (3, 8, 8)
    assert pixels.min() >= 250


def test_sixteen_bit_greys_keep_their_shade() -> None:
    grey = Image.fromarray(np.full((16, 16), 100 * 257, np.uint16))
    assert (decode_bytes(encoded(grey), Recipe(8)) == 100).all()


def test_what_is_transparent_shows_white() -> None:
    clear = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    assert (decode_bytes(encoded(clear), Recipe(8)) == 255).all()


def test_a_palette_with_transparency_shows_white_where_it_is_clear() -> None:
    picture = Image.new("P", (16, 16), 0)
    picture.putpalette([255, 0, 0, 0, 0, 255])
    content = encoded(picture, transparency=bytes([0, 255]))
    assert (decode_bytes(content, Recipe(8)) == 255).all()


def test_pictures_are_turned_as_the_camera_noted() -> None:
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    turned = decode_bytes(encoded(Image.fromarray(pixels), exif=exif), Recipe(16))
    assert turned[:, 9:].min() == 255
    assert turned[:, :7].max() == 0


def test_files_come_back_in_order_whatever_thread_decoded_them(tmp_path: Path) -> None:
    paths = []
    for shade in range(200):
        paths.append(tmp_path / f"{shade}.png")
        Image.new("L", (8, 8), shade).save(paths[-1])
    recipe = Recipe(8)
    chunks = list(decode_all(paths, recipe))
    assert len(chunks) == -(-200 // recipe.chunk) > 1
    assert np.concatenate([chunk.pixels for chunk in chunks])[:, 0, 0, 0].tolist() == list(range(200))


def test_equal_bytes_have_equal_digests_and_others_do_not(tmp_path: Path) -> None:
    for name, shade in (("a", 1), ("b", 1), ("c", 2)):
        Image.new("L", (8, 8), shade).save(tmp_path / f"{name}.png")
    (chunk,) = decode_all([tmp_path / f"{name}.png" for name in "abc"], Recipe(8))
    assert chunk.contents[0] == chunk.contents[1] != chunk.contents[2]


def test_broken_files_are_named_with_a_reason_and_spare_the_others(tmp_path: Path) -> None:
    good = encoded(Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)))
    contents = {"good": good, "cut": good[: len(good) // 2], "text": b"no picture at all", "empty": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (chunk,) = decode_all([tmp_path / name for name in contents], Recipe(8))
    assert set(chunk.bad) == {1, 2, 3}
    assert chunk.bad[2] == "not an image"
    assert chunk.bad[3] == "the file is empty"
    assert chunk.pixels[0].any()
    assert not chunk.pixels[1:].any()


def test_a_truncated_jpeg_is_broken(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), "JPEG")
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    (chunk,) = decode_all([tmp_path / "cut.jpg"], Recipe(8))
    assert "truncated" in chunk.bad[0]


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_bad_picture(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Cannot read the image .*gone\.png"):
        list(decode_all([tmp_path / "gone.png"], Recipe(8)))


@pytest.mark.parametrize("size", [0, 7, 1025, -64])
def test_absurd_sizes_are_refused(size: int) -> None:
    with pytest.raises(UserError, match="between 8 and 1024"):
        Recipe(size)


def test_an_unknown_crop_is_refused() -> None:
    with pytest.raises(UserError, match="'centre' or 'none'"):
        Recipe(8, "middle")  # type: ignore[arg-type]
