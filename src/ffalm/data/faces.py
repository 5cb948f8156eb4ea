"""Synthetic faces, young or not, with lighter and darker skin: images that need no file.

Two things make a classifier unfair here, as with photographs: darker faces are less often young, and their age is
harder to see, because their images are underexposed and their apparent age is noisier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ffalm.data.decode import Recipe
from ffalm.data.faces_drawing import Looks, draw_faces
from ffalm.data.preprocessing import Preprocessing
from ffalm.data.splits import split_rows
from ffalm.data.types import Dataset, Examples, Task
from ffalm.randomness import Purpose, generator
from ffalm.settings import described

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

PARTS = (0.7, 0.1, 0.2)
FEWEST_ROWS = 100
ADULTHOOD = 20  # age at which one is no longer young, as in studies on UTKFace
OLDEST = 90
SHARE_OF_DARKER = 0.4
SHARE_OF_YOUNG = (0.33, 0.18)  # by group, as are all pairs below
DOUBT = (0.05, 0.45)  # standard deviation of the logarithm of how old one looks against how old one is
CONTRAST = (1.0, 0.65)
EXPOSURE = ((0.88, 1.08), (0.60, 1.00))
GRAIN = ((3.0, 7.0), (6.0, 13.0))
#: Skin from palest to deepest within each group; people fall between the two ends.
SKIN = (((252, 224, 200), (222, 172, 136)), ((172, 120, 84), (84, 54, 38)))
HAIR = ((35, 28, 25), (70, 45, 30), (110, 72, 42), (190, 150, 90), (140, 65, 35))
HAIR_SHARES = ((0.2, 0.25, 0.25, 0.2, 0.1), (0.75, 0.2, 0.05, 0.0, 0.0))
EYES = ((70, 110, 150), (80, 120, 80), (95, 62, 38), (55, 36, 26))
EYE_SHARES = ((0.3, 0.2, 0.35, 0.15), (0.0, 0.03, 0.37, 0.6))
TASK = Task(
    name="faces",
    label="young",
    group="skin tone",
    label_names=("no", "yes"),
    group_names=("lighter", "darker"),
)


@dataclass(frozen=True)
class Faces:
    """Faces drawn by `data_seed` at `size` pixels; groups and labels have exact shares under every seed."""

    name: ClassVar[str] = "faces"
    about: ClassVar[str] = "drawn faces (no files)"
    asks: ClassVar[str] = "young (favourable), by skin tone: lighter, darker"
    needs_files: ClassVar[bool] = False

    rows: int = described("Faces to draw.", 6_000, least=FEWEST_ROWS, most=10**7)
    size: Literal[32, 64] = described("Side of the images in pixels.", 32)
    data_seed: int = described("Seed of the drawn faces.", 0, least=0)

    def load(self) -> Dataset:
        """Draw the faces and split them 70/10/20."""
        draw = generator(self.data_seed, Purpose.DATA)
        group, y = _cells(self.rows, draw)
        pictures = draw_faces(_looks(_ages(y, draw), group, draw), self.size, draw)
        everything = Examples(torch.from_numpy(pictures), torch.from_numpy(y), torch.from_numpy(group))
        parts = split_rows(2 * y + group, PARTS, self.data_seed)
        notes = ("These faces are drawn by a program; the gap between skin tones is built in, not observed.",)
        recipe = Preprocessing(images=Recipe(self.size))
        examples = (everything.take(torch.from_numpy(rows)) for rows in parts)
        return Dataset(TASK, *examples, notes=notes, preprocessing=recipe)


def _cells(rows: int, draw: np.random.Generator) -> tuple[Codes, Codes]:
    """Group and label of everybody, in random order and in the stated shares."""
    darker = round(rows * SHARE_OF_DARKER)
    sizes = (rows - darker, darker)
    group = np.repeat((0, 1), sizes)
    y = np.concatenate(
        [np.arange(size) < round(size * share) for size, share in zip(sizes, SHARE_OF_YOUNG, strict=True)]
    )
    order = draw.permutation(rows)
    return group[order].astype(np.int64), y[order].astype(np.int64)


def _ages(y: Codes, draw: np.random.Generator) -> Floats:
    """Ages in years: the young evenly, the others falling off towards `OLDEST`."""
    young = draw.uniform(2, ADULTHOOD, len(y))
    grown = ADULTHOOD + (OLDEST - ADULTHOOD) * draw.beta(1.3, 2.2, len(y))
    return np.where(y == 1, young, grown)


def _looks(age: Floats, group: Codes, draw: np.random.Generator) -> Looks:
    """How everybody looks; only `childlike`, `aged` and the beard depend on age."""
    rows = len(age)
    seeming = age * np.exp(draw.normal(0, 1, rows) * np.array(DOUBT)[group])
    ends = np.array(SKIN, dtype=np.float64)[group]
    depth = draw.uniform(0, 1, (rows, 1))
    values = {
        "childlike": np.clip((25 - seeming) / 14, 0, 1),
        "aged": np.clip((seeming - 22) / 42, 0, 1),
        "skin": ends[:, 0] * (1 - depth) + ends[:, 1] * depth + draw.normal(0, 4, (rows, 3)),
        "hair": _chosen(HAIR, HAIR_SHARES, group, draw),
        "eyes": _chosen(EYES, EYE_SHARES, group, draw),
        "clothes": _muted(40, 190, rows, draw),
        "background": _muted(110, 225, rows, draw),
        "contrast": np.array(CONTRAST)[group] * draw.uniform(0.8, 1.1, rows),
        "exposure": _between(EXPOSURE, group, draw),
        "grain": _between(GRAIN, group, draw),
        "light": draw.uniform(-1, 1, rows),
        "shift_x": draw.normal(0, 0.05, rows),
        "shift_y": draw.normal(0.02, 0.04, rows),
        "scale": draw.uniform(0.9, 1.12, rows),
        "roll": draw.normal(0, 0.08, rows),
        "turn": draw.uniform(-0.07, 0.07, rows),
        "smile": draw.uniform(-0.3, 1.0, rows),
        "parting": draw.uniform(-0.35, 0.35, rows),
        "hair_length": np.where(draw.uniform(0, 1, rows) < 0.4, draw.uniform(0.45, 0.95, rows), -0.1),
    }
    flags = {
        "glasses": draw.uniform(0, 1, rows) < 0.12,
        "beard": (draw.uniform(0, 1, rows) < 0.2) & (seeming > 22),
    }
    return Looks(**{name: value.astype(np.float32) for name, value in values.items()}, **flags)


def _muted(low: float, high: float, rows: int, draw: np.random.Generator) -> Floats:
    """A colour for everybody, closer to grey than an even draw, so that it does not drown the face."""
    return draw.uniform(low, high, (rows, 1)) * 0.6 + draw.uniform(low, high, (rows, 3)) * 0.4


def _between(bounds: tuple[tuple[float, float], ...], group: Codes, draw: np.random.Generator) -> Floats:
    """A value for everybody, even between the bounds of their group."""
    low, high = np.array(bounds)[group].T
    values: Floats = draw.uniform(low, high)
    return values


def _chosen(
    colours: tuple[tuple[int, int, int], ...],
    shares: tuple[tuple[float, ...], ...],
    group: Codes,
    draw: np.random.Generator,
) -> Floats:
    """A colour for everybody, by the shares of their group, each a little different."""
    below = np.cumsum(shares, axis=1)[group] < draw.uniform(0, 1, (len(group), 1))
    palette = np.array(colours, dtype=np.float64)
    picked: Floats = palette[np.minimum(below.sum(axis=1), len(colours) - 1)]
    return picked + draw.normal(0, 6, picked.shape)
