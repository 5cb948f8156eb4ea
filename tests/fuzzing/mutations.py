"""Small changes to messages: of a record, a tensor, a fact, a JSON text or bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ffalm.engines.remote.message import Fact, Message

_NUMBERS = (
    0, 1, -1, 2, 7, 2**31, 2**40, 2**53, 2**62, 2**63 - 1, -(2**63), float("nan"), float("inf"), -float("inf"), 1e308,
    -1e308, 5e-324, 0.5, -0.0,
)  # fmt: skip
_TEXTS = (
    "", "x", "null", "{}", "[]", "0", "-1", "nan", "1e999", "\x1b[2J", "a\nb", "\x00", "\u202e", "x" * 70_000, '"', "{",
    "[" * 50_000, '{"a":' * 20_000, "9" * 5000, "true", "[[]]", '[{"a": [1]}]', "north", "train 1", "none",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, *_NUMBERS, 10**400, "", "x", "\x1b[2J", [], {}, [1], ["a"], {"a": 1}, [[]], {"": None},
    "9" * 5000,
)  # fmt: skip
_TYPES = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16, torch.bfloat16,
    torch.int8, torch.int16,
)  # fmt: skip


def changed_bytes(draws: random.Random, content: bytes) -> bytes:
    """Bytes cut, flipped, doubled, lengthened, or others altogether."""
    place = draws.randrange(max(1, len(content)))
    noise = draws.randbytes(draws.randrange(1, 12))
    return draws.choice(
        (
            content[:place],
            content[place:],
            content[:place] + noise + content[place:],
            content[:place] + bytes([draws.randrange(256)]) + content[place + 1 :],
            content[:place] + draws.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7)) + content[place + 8 :],
            content * 2,
            noise,
            b"",
        )
    )


def changed_text(draws: random.Random, text: str) -> str:
    """A JSON text with one value changed, or a text with its characters changed."""
    if draws.random() < 0.2:
        return draws.choice(_TEXTS)
    if draws.random() < 0.2:
        return changed_bytes(draws, text.encode()).decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return draws.choice(_TEXTS)
    return json.dumps(changed_value(draws, value))


def changed_value(draws: random.Random, value: Any) -> Any:
    """Plain values with one of them changed, somewhere inside."""
    if isinstance(value, dict) and value and draws.random() < 0.9:
        name = draws.choice(list(value))
        how = draws.randrange(8)
        if how == 0:
            return {key: one for key, one in value.items() if key != name}
        if how == 1:
            return {**value, draws.choice(("", "x", "0", "-1", "1e9", "\x1b[2J", f"{name} ")): value[name]}
        if how == 2:
            return {draws.choice(("", "99", "-1", "x")) if key == name else key: one for key, one in value.items()}
        return {**value, name: changed_value(draws, value[name])}
    if isinstance(value, list) and value and draws.random() < 0.9:
        place, how = draws.randrange(len(value)), draws.randrange(6)
        if how == 0:
            return value[:place] + value[place + 1 :]
        if how == 1:
            return [*value, value[place]]
        if how == 2:
            return value[::-1]
        return [*value[:place], changed_value(draws, value[place]), *value[place + 1 :]]
    if isinstance(value, str) and value[:1] in ("{", "["):
        return changed_text(draws, value)
    if isinstance(value, str) and value and draws.random() < 0.5:
        return changed_bytes(draws, value.encode()).decode("utf-8", "replace")
    if type(value) in (int, float) and draws.random() < 0.6:
        return draws.choice((*_NUMBERS, value + 1, -value, value * 2, value * 10**6))
    return draws.choice(_VALUES)


def changed_tensor(draws: random.Random, tensor: Tensor) -> Tensor:
    """A tensor of other values, type or shape."""
    ways: list[Callable[[], Tensor]] = [
        lambda: tensor.to(draws.choice(_TYPES)),
        lambda: tensor.reshape(-1),
        lambda: tensor[None],
        lambda: tensor.reshape(-1)[:-1],
        lambda: torch.cat([tensor.reshape(-1)] * 2),
        lambda: tensor.reshape(-1)[:0],
        lambda: torch.zeros(draws.choice(((), (0,), (1, 0, 3), (2, 2), (50_000,)))),
        lambda: torch.zeros_like(tensor),
        lambda: -tensor if tensor.dtype != torch.bool else ~tensor,
        lambda: tensor * 3 if tensor.dtype != torch.bool else ~tensor,
        lambda: _poked(draws, tensor),
        lambda: _poked(draws, tensor),
        lambda: _poked(draws, tensor),
        lambda: (
            torch.full_like(tensor, True) if tensor.dtype == torch.bool else _full(tensor, draws.choice(_NUMBERS[:-4]))
        ),
    ]
    return draws.choice(ways)()


def _poked(draws: random.Random, tensor: Tensor) -> Tensor:
    """The tensor with one other number in it."""
    flat = tensor.clone().reshape(-1)
    if flat.numel():
        place = draws.randrange(flat.numel())
        flat[place] = _full(flat[:1], draws.choice(_NUMBERS))[0]
    return flat.reshape(tensor.shape)


def _full(like: Tensor, value: float) -> Tensor:
    """The number as this type holds it, wrapped around where it is too large."""
    if like.is_floating_point():
        return torch.full(like.shape, float(value), dtype=torch.float64).to(like.dtype)
    whole = (
        value
        if isinstance(value, int)
        else 0
        if value != value
        else 2**62
        if value > 1e18
        else int(max(value, -(2**62)))
    )
    return torch.full(like.shape, whole, dtype=torch.int64).to(like.dtype)


def changed_message(draws: random.Random, message: Message) -> Message:
    """A message with one fact, record or tensor missing, doubled, renamed or changed."""
    if message.tensors and (not message.facts or draws.random() < 0.6):
        return replace(message, tensors=_changed_tensors(draws, message.tensors))
    return replace(message, facts=_changed_facts(draws, message.facts))


def _changed_facts(draws: random.Random, facts: dict[str, Fact]) -> dict[str, Fact]:
    names = list(facts)
    how = draws.randrange(10)
    if not names or how == 0:
        strange = draws.choice(("misfit", "refused", "round", "client", "loss", "stage", "x", "", "secure", "rows"))
        return {**facts, strange: draws.choice((*_NUMBERS, *_TEXTS, True))}
    name = draws.choice(names)
    if how == 1:
        return {key: value for key, value in facts.items() if key != name}
    if how == 2:
        return {**facts, name: draws.choice((*_NUMBERS, *_TEXTS, True, False))}
    value = facts[name]
    if isinstance(value, str):
        return {**facts, name: changed_text(draws, value)}
    return {**facts, name: draws.choice((*_NUMBERS, str(value), not value))}


def _changed_tensors(draws: random.Random, records: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    name = draws.choice(list(records))
    record = records[name]
    how = draws.randrange(12)
    if how == 0:
        return {key: value for key, value in records.items() if key != name}
    if how == 1:
        return {**records, draws.choice(("x", "", "tally", "state", "own.c", "upload.c", "values", "vector.v")): record}
    if how == 2 or not record:
        return {**records, name: draws.choice(list(records.values()))}
    entry = draws.choice(list(record))
    if how == 3:
        return {**records, name: {key: value for key, value in record.items() if key != entry}}
    if how == 4:
        return {**records, name: {**record, draws.choice(("x", "", f"{entry}.x")): record[entry]}}
    return {**records, name: {**record, entry: changed_tensor(draws, record[entry])}}
