"""Drawing many stylised faces at once with numpy: a few ellipses, curves and colours for each person.

Faces are drawn at twice the size and averaged down, which smooths the edges. Every shape paints one colour of
the person's palette into an index picture, last on top; colours are looked up once at the end. Lengths are in
half heights of the picture, with the middle of the head at the origin and y pointing down.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32 throughout, for speed
Mask = NDArray[np.bool_]

#: Images drawn together: enough to keep numpy busy, few enough to stay in the processor's cache.
CHUNK = 64
SUPERSAMPLING = 2
GREY = np.array([200, 200, 205], dtype=np.float32)
WHITE = np.array([245, 245, 240], dtype=np.float32)
BLACK = np.array([25, 22, 22], dtype=np.float32)
RED = np.array([200, 70, 70], dtype=np.float32)


@dataclass(frozen=True)
class Looks:
    """What it takes to draw people, one row each; colours are (rows, 3) in 0..255, the rest (rows,)."""

    childlike: Array  # 1 a small child, 0 grown up: proportions of the face
    aged: Array  # 0 unlined, 1 very old: wrinkles, grey and receding hair
    skin: Array
    hair: Array
    eyes: Array
    clothes: Array
    background: Array
    contrast: Array  # how clearly lines and shadows stand out from the skin
    exposure: Array  # brightness of the whole picture
    grain: Array  # standard deviation of the camera's noise, in 0..255
    light: Array  # -1 lit from the left, 1 from the right
    shift_x: Array
    shift_y: Array
    scale: Array
    roll: Array  # radians
    turn: Array  # how far the features sit to one side, as when the head is turned
    smile: Array
    hair_length: Array  # how far down the hair reaches, below 0 for short
    parting: Array  # slope of the hairline
    glasses: Mask
    beard: Mask

    def __len__(self) -> int:
        return len(self.aged)

    def take(self, rows: slice) -> Looks:
        """The looks of some of the people."""
        return Looks(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def draw_faces(looks: Looks, size: int, draw: np.random.Generator) -> NDArray[np.uint8]:
    """Images (rows, 3, size, size) of these people."""
    pictures = np.empty((len(looks), 3, size, size), dtype=np.uint8)
    for start in range(0, len(looks), CHUNK):
        rows = slice(start, start + CHUNK)
        some = looks.take(rows)
        noise = draw.standard_normal((len(some), 3, size, size), dtype=np.float32)
        pictures[rows] = np.clip(_photograph(some, size) + noise * _each(some.grain, 3), 0, 255)
    return pictures


def _photograph(looks: Looks, size: int) -> Array:
    """The exposed picture without noise."""
    face = _Face(looks, size * SUPERSAMPLING)
    for part in (_back_hair, _body, _head, _lines, _beard_and_mouth, _nose, _eyes, _front_hair, _glasses):
        part(face)
    smooth = _averaged(face.picture()).transpose(0, 3, 1, 2)
    across = np.linspace(-1, 1, size, dtype=np.float32)
    lighting = 1 + 0.18 * _each(looks.light, 3) * across
    exposed: Array = smooth * lighting * _each(looks.exposure, 3)
    return exposed


def _averaged(sharp: Array) -> Array:
    """Downsampling by averaging squares of pixels; adding shifted images is much faster than `mean`."""
    total = np.zeros_like(sharp[:, ::SUPERSAMPLING, ::SUPERSAMPLING])
    for down in range(SUPERSAMPLING):
        for right in range(SUPERSAMPLING):
            total += sharp[:, down::SUPERSAMPLING, right::SUPERSAMPLING]
    return total / SUPERSAMPLING**2


def _each(values: NDArray[np.generic], axes: int = 2) -> Array:
    """One value per person, broadcast over the pixels."""
    return values.astype(np.float32).reshape(-1, *(1,) * axes)


class _Face:
    """The index picture of some people, and the coordinates in which their heads stand upright."""

    def __init__(self, looks: Looks, side: int) -> None:
        self.looks = looks
        self.index = np.zeros((len(looks), side, side), dtype=np.uint8)
        self.palette = [looks.background]
        axis = (np.arange(side, dtype=np.float32) + 0.5) / side * 2 - 1
        x, y = axis - _each(looks.shift_x), axis[:, None] - _each(looks.shift_y)
        cos, sin = (_each(f(looks.roll) / looks.scale) for f in (np.cos, np.sin))
        self.x, self.y = x * cos + y * sin, y * cos - x * sin
        self.feature_x = self.x - _each(looks.turn)
        child, aged = _each(looks.childlike), _each(looks.aged)
        self.half_height = 0.62 - 0.02 * child
        self.half_width = self.half_height * (0.70 + 0.26 * child + 0.03 * aged)
        self.eye_line = -0.10 + 0.20 * child
        self.eye_distance = 0.205 + 0.035 * child
        self.mouth_line = self.eye_line + 0.40 - 0.13 * child
        self.in_head = self.ellipse(self.x, self.y, self.half_width, self.half_height)

    def ellipse(self, x: Array, y: Array, half_width: Array | float, half_height: Array | float) -> Mask:
        """Where an ellipse around the origin of these coordinates lies."""
        inside: Mask = (x / half_width) ** 2 + (y / half_height) ** 2 < 1
        return inside

    def ring(self, x: Array, y: Array) -> Array:
        """How far out one is on the head's ellipse in these coordinates: 0 in the middle, 1 at the edge."""
        distance: Array = np.sqrt((x / self.half_width) ** 2 + (y / self.half_height) ** 2)
        return distance

    def paint(self, where: Mask, colour: Array) -> None:
        """Put one colour a person over what is there."""
        np.copyto(self.index, np.uint8(len(self.palette)), where=where)
        self.palette.append(np.broadcast_to(colour, self.looks.skin.shape))

    def shadow(self, strength: Array | float) -> Array:
        """The skin's colour, darker by this share as far as the picture's contrast shows it."""
        share = np.broadcast_to(np.asarray(strength, dtype=np.float32), self.looks.contrast.shape)
        darker: Array = self.looks.skin * (1 - share * self.looks.contrast)[:, None]
        return darker

    def picture(self) -> Array:
        """The colours (rows, side, side, 3)."""
        palette = np.stack(self.palette, axis=1).astype(np.float32)
        rows = np.arange(len(palette)).reshape(-1, 1, 1)
        found: Array = palette[rows, self.index]
        return found


def _hair_colour(looks: Looks) -> Array:
    grey = np.clip(1.6 * looks.aged - 0.15, 0, 1)[:, None]
    mixed: Array = looks.hair * (1 - grey) + GREY * grey
    return mixed


def _body(face: _Face) -> None:
    face.paint(face.ellipse(face.x, face.y - 1.15, 0.85, 0.5), face.looks.clothes)
    neck = (np.abs(face.x) < 0.45 * face.half_width) & (face.y > 0.3) & (face.y < 0.78)
    face.paint(neck, face.shadow(0.22))


def _back_hair(face: _Face) -> None:
    long = _each(face.looks.hair_length)
    crown = face.ellipse(face.x, face.y + 0.06, face.half_width + 0.09, face.half_height + 0.06)
    strands = (np.abs(face.x) < face.half_width + 0.08 - 0.3 * (face.y - 0.3) ** 2) & (face.y > 0)
    strands &= face.y < long - 0.5 * face.x**2
    upper = crown & (face.y < np.maximum(long, 0.0))
    face.paint(upper | strands, _hair_colour(face.looks) * 0.8)


def _head(face: _Face) -> None:
    side = np.abs(face.x) - face.half_width
    face.paint(face.ellipse(side, face.y - face.eye_line - 0.06, 0.08, 0.12), face.shadow(0.12))
    face.paint(face.in_head, face.looks.skin)
    cheek = face.ellipse(
        np.abs(face.feature_x) - 0.27, face.y - (face.eye_line + face.mouth_line) / 2 - 0.06, 0.10, 0.08
    )
    blush = (0.05 + 0.2 * face.looks.childlike * face.looks.contrast)[:, None]
    face.paint(cheek & face.in_head, face.looks.skin * (1 - blush) + RED * blush)


def _lines(face: _Face) -> None:
    """Forehead lines, folds beside the mouth and bags under the eyes, which deepen with age."""
    aged = face.looks.aged
    x, y = face.feature_x, face.y
    forehead = np.zeros_like(face.in_head)
    for number in range(3):
        height = face.eye_line - 0.20 - 0.085 * number
        forehead |= np.abs(y - height - 0.2 * x**2) < 0.014
    forehead &= np.abs(x) < 0.24
    fold = np.abs(np.abs(x) - 0.13 - 0.35 * (y - face.eye_line - 0.18)) < 0.016
    fold &= (y > face.eye_line + 0.18) & (y < face.mouth_line + 0.04)
    under = y - face.eye_line - 0.085 + 1.5 * (np.abs(x) - face.eye_distance) ** 2
    bag = (np.abs(under) < 0.016) & (np.abs(np.abs(x) - face.eye_distance) < 0.1)
    face.paint((forehead | fold | bag) & face.in_head, face.shadow(np.minimum(0.75 * aged, 0.5)))


def _beard_and_mouth(face: _Face) -> None:
    looks, x, y = face.looks, face.feature_x, face.y
    child = _each(looks.childlike)
    jaw = face.in_head & (y > face.mouth_line - 0.09 + 0.25 * np.abs(x)) & _each(looks.beard).astype(bool)
    face.paint(jaw, _hair_colour(looks) * 0.9)
    bend = y - face.mouth_line + _each(looks.smile) * (x**2 * 4 - 0.04)
    width = 0.17 - 0.05 * child
    lips = (np.abs(bend) < 0.038 * (1 - (x / width) ** 2)) & (np.abs(x) < width)
    face.paint(lips, looks.skin * 0.45 + RED * 0.4)
    face.paint((np.abs(bend) < 0.011) & (np.abs(x) < width), face.shadow(0.65))


def _nose(face: _Face) -> None:
    child = _each(face.looks.childlike)
    tip = face.mouth_line - 0.15 + 0.03 * child
    x, y = face.feature_x, face.y - tip
    width = 0.075 - 0.025 * child
    face.paint(face.ellipse(x, y, width, 0.035), face.shadow(0.28))
    ridge = (np.abs(x - 0.3 * width) < 0.013) & (y < 0) & (face.y > face.eye_line + 0.04)
    face.paint(ridge, face.shadow(0.16))


def _eyes(face: _Face) -> None:
    looks = face.looks
    child, aged = _each(looks.childlike), _each(looks.aged)
    x, y = np.abs(face.feature_x) - face.eye_distance, face.y - face.eye_line
    width = 0.082 + 0.058 * child
    height = width * (0.58 + 0.32 * child - 0.15 * aged)
    white = face.ellipse(x, y, width, height)
    face.paint(face.ellipse(x, y + 0.012, width + 0.015, height + 0.015), face.shadow(0.45))
    face.paint(white, WHITE)
    iris = height * 0.92
    face.paint(face.ellipse(x, y, iris, iris) & white, looks.eyes)
    face.paint(face.ellipse(x, y, iris * 0.5, iris * 0.5), BLACK)
    glint = face.ellipse(x + iris * 0.3, y + iris * 0.35, iris * 0.28, iris * 0.28)
    face.paint(glint, WHITE)
    brow = face.ellipse(x, y + height + 0.07 - 0.9 * x**2, width * 1.15, 0.030 - 0.012 * child)
    face.paint(brow & face.in_head, _hair_colour(looks) * 0.75)


def _front_hair(face: _Face) -> None:
    looks = face.looks
    aged, child = _each(looks.aged), _each(looks.childlike)
    cap = face.ellipse(face.x, face.y + 0.06, face.half_width + 0.07, face.half_height + 0.05)
    line = -0.37 + 0.04 * child - 0.22 * aged + _each(looks.parting) * face.x + 0.7 * face.x**2
    hair = cap & (face.y < line)
    face.paint(hair, _hair_colour(looks))
    shine = np.abs(face.ring(face.x + 0.12 * _each(looks.light), face.y + 0.1) - 0.78) < 0.05
    face.paint(hair & shine, _hair_colour(looks) * 1.18)


def _glasses(face: _Face) -> None:
    x, y = np.abs(face.feature_x) - face.eye_distance, face.y - face.eye_line
    rim = face.ellipse(x, y, 0.165, 0.14) & ~face.ellipse(x, y, 0.138, 0.113)
    bridge = (np.abs(y) < 0.014) & (np.abs(face.feature_x) < face.eye_distance - 0.15)
    face.paint((rim | bridge) & _each(face.looks.glasses).astype(bool), BLACK)
