"""Answers every question to a site in its own process: a fork of one that has everything imported.

A new Python would spend seconds importing torch for each question. The process that is forked is `multiprocessing`'s
fork server, which is started again if it has died. On macOS, where forks are not safe with torch, each question starts
a new Python.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ffalm.federate.deploy.process_log import start_log
from ffalm.system.child_process import follow_parent
from ffalm.system.files import remove_leftovers

if TYPE_CHECKING:
    from flwr.app import Message

_NEEDED = [
    "ffalm.federate.deploy.federation_apps",
    "ffalm.federate.site.answering",
    "ffalm.federate.site.rows",
    "torch.fx.experimental.symbolic_shapes",  # half a second, which torch's first gradient would take
]
_SECONDS_TO_END = 5.0
_ATTEMPTS, _SECONDS_TO_NOTICE = 10, 0.1


class Encoded(NamedTuple):
    """A message as Flower sends it: itself without content, the tree of its objects, and their bytes by number."""

    message: bytes
    tree: bytes
    objects: dict[str, bytes]


class AnswerProcess:
    """Starts the processes that answer for a site folder, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context: ForkServerContext | SpawnContext = (
            multiprocessing.get_context("forkserver")
            if sys.platform == "linux"
            else multiprocessing.get_context("spawn")
        )

    def warm_up(self) -> None:
        """Start importing what every answer needs, and remove what a site that was killed left half-written."""
        self._tidy()
        if sys.platform == "linux":
            self._context.set_forkserver_preload(_NEEDED)
            forkserver.ensure_running()

    def answer(self, number: str, objects: dict[str, bytes]) -> Encoded | None:
        """The answer to the message with that number; None if the process died."""
        ours, process = self._started()
        try:
            ours.send((number, objects))
            answer: Encoded = ours.recv()
            process.join(_SECONDS_TO_END)
            return answer
        except (EOFError, OSError):
            return None
        finally:
            process.kill()
            process.join()
            ours.close()
            if process.exitcode:
                self._tidy()

    def _tidy(self) -> None:
        for folder in (self._folder, *(path for path in self._folder.glob(".*") if path.is_dir())):
            remove_leftovers(folder)

    def _started(self) -> tuple[Connection, BaseProcess]:
        """A process that waits for a question; it takes a moment to notice that the fork server has died."""
        for attempt in range(_ATTEMPTS):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_answer, args=(theirs, str(self._folder)))
            try:
                process.start()
            except (EOFError, OSError):
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_SECONDS_TO_NOTICE)
            else:
                return ours, process
            finally:
                theirs.close()
        raise AssertionError


def encoded(message: Message) -> Encoded:
    """A message and all that is in it."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    message.metadata.__dict__["_message_id"] = message.object_id
    with no_object_id_recompute():
        head = message_to_proto(remove_content_from_message(message)).SerializeToString()
        objects = {number: found.deflate() for number, found in get_all_nested_objects(message).items()}
        return Encoded(head, get_object_tree(message).SerializeToString(), objects)


def _answer(connection: Connection, folder: str) -> None:
    """Answer one question in this process, by this installation's client app, whatever app the run has."""
    follow_parent()
    start_log()
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    number, objects = connection.recv()
    message = inflate_object_from_contents(number, objects)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = number
    from ffalm.federate.deploy.federation_apps import client

    context = Context(
        run_id=message.metadata.run_id,
        node_id=message.metadata.dst_node_id,
        node_config={"site": folder},
        state=RecordDict(),
        run_config={},
    )
    connection.send(encoded(client(message, context)))
