"""Messages as Flower's records.

All tensors of a message travel as an array of bytes, or a few, in safetensors' format: exact in type and shape, and
free of the half kilobyte and the two requests that Flower spends on every array of its own. So a message with duals and
a Tally is no larger than the plain message with the model alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from ffalm.engines.remote.message import Fact, Failure, Message, printable

_TENSORS, _FACTS, _FAILURE = "tensors", "facts", "failure"
_FORMAT = "safetensors"
_LARGEST = 2**23  # bytes in one array: larger pieces of memory cost more to get than to fill


Encoded = dict[tuple[int, ...], list[Array]]
"""What was encoded already, by the identities of its records."""


def packed(message: Message, known: Encoded | None = None) -> RecordDict:
    """A message as the content of a message.

    Tensors that are `known`, because another site is sent them too, are not encoded again.
    """
    shared = {} if known is None else known
    key = tuple(id(tensors) for tensors in message.tensors.values())
    if key not in shared:
        shared[key] = _arrays(message.tensors)
    record, names = ArrayRecord(), ",".join(message.tensors)
    for number, array in enumerate(shared[key]):
        record[f"{names}:{number}"] = array
    return RecordDict({_TENSORS: record, _FACTS: ConfigRecord(dict(message.facts))})


def packed_failure(reason: str, trace: str = "") -> RecordDict:
    """The content of an answer that says why there is none."""
    return RecordDict({_FAILURE: ConfigRecord({"reason": reason, "trace": trace})})


def unpacked(content: RecordDict) -> Message:
    """The message in a message's content."""
    arrays = content.array_records[_TENSORS]
    names = next(iter(arrays)).partition(":")[0]
    tensors: dict[str, dict[str, Tensor]] = {name: {} for name in names.split(",") if name}
    for array in arrays.values():
        for path, value in load(array.data).items():
            record, _, name = path.partition("/")
            tensors[record][name] = value
    return Message(tensors, _facts(content.config_records[_FACTS]))


def unpacked_answer(content: RecordDict) -> Message | Failure:
    """The message or the failure in an answer's content."""
    if _FAILURE in content:
        facts = _facts(content.config_records[_FAILURE])
        return Failure("failed", printable(str(facts["reason"])), str(facts["trace"]))
    return unpacked(content)


def _arrays(records: Mapping[str, Mapping[str, Tensor]]) -> list[Array]:
    """Arrays of bytes, at least one, in which each tensor goes by its record's name and its own."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for record, entries in records.items():
        for name, value in entries.items():
            if size and size + value.nbytes > _LARGEST:
                parts.append({})
                size = 0
            parts[-1][f"{record}/{name}"] = value.detach().contiguous()
            size += value.nbytes
    encoded = [save(part) for part in parts]
    return [Array(dtype="uint8", shape=(len(data),), stype=_FORMAT, data=data) for data in encoded]


def _facts(record: ConfigRecord) -> dict[str, Fact]:
    return {name: value for name, value in record.items() if isinstance(value, bool | int | float | str)}
