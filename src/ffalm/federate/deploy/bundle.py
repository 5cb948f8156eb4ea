"""The format of bundles: a message and all its objects in one request, instead of Flower's request for each object.

Flower splits even a small message into six objects, and each request passes ten layers and the database. A round of
three sites took a hundred requests, which cost more than the training. Flower's own requests send what is too large for
a bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from google.protobuf.wrappers_pb2 import BytesValue

if TYPE_CHECKING:
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.supercore.protobuf.client import ProtobufClient

TAKE, GIVE = "/v1/fleet/ffalm-take", "/v1/fleet/ffalm-give"  # of a site: a question, an answer
SEND, COLLECT = "/v1/runtime/ffalm-send", "/v1/runtime/ffalm-collect"  # of the run: questions, answers
MOST_BYTES = 2**24  # of objects in a bundle
FIRST_RETRY = 0.05  # seconds until an object that is still on its way to the coordinator is asked for again
_SIZE = 8  # bytes of the length before each part


def joined(parts: Iterable[bytes]) -> bytes:
    """Parts as one string, each preceded by its length."""
    return b"".join(len(part).to_bytes(_SIZE, "big") + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """The inverse of `joined`; raises `ValueError` if the data is cut short."""
    parts, begin = list[bytes](), 0
    while begin < len(data):
        end = begin + _SIZE + int.from_bytes(data[begin : begin + _SIZE], "big")
        if end > len(data):
            raise ValueError("A bundle is cut short.")
        parts.append(data[begin + _SIZE : end])
        begin = end
    return parts


def numbered(objects: Mapping[str, bytes | None], most: int = MOST_BYTES) -> list[bytes]:
    """Objects as parts, each preceded by its number: those that exist, as many as fit."""
    parts = list[bytes]()
    for number, content in objects.items():
        if content and len(content) <= most:
            parts += [number.encode(), content]
            most -= len(content)
    return parts


def objects_in(parts: list[bytes]) -> dict[str, bytes]:
    """The objects of such parts."""
    return dict(zip((number.decode() for number in parts[::2]), parts[1::2], strict=True))


def numbers_in(tree: ObjectTree) -> list[str]:
    """The numbers of a message's objects, the message itself included."""
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def exchange(client: ProtobufClient, path: str, parts: Iterable[bytes]) -> list[bytes]:
    """Send a bundle by one of Flower's clients, with its keys or tokens; the bundle in the answer."""
    request = BytesValue(value=joined(parts))
    return split(client._unary_unary(path=path, rpc_method=path, request=request, response_type=BytesValue).value)
