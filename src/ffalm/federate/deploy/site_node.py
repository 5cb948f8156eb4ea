"""A site's process: takes the coordinator's questions, has them answered and sends the answers.

It uses the Fleet API of Flower's SuperLink in place of Flower's SuperNode, which sleeps for three seconds between two
requests for messages, starts a Python for each message through a third process that polls, opens a port for it on
loopback, and unpacks the app that came with the run. Here a request lasts until there is a message (`long_polling`), a
question goes to a process that is ready (`answer_process`), nothing listens on any port, and no app is fetched.

    python -m ffalm.federate.deploy.site_node FOLDER HOST:PORT [--insecure]
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ffalm.federate.deploy.answer_process import AnswerProcess, Encoded, encoded
from ffalm.federate.deploy.fleet_client import FleetClient, connected
from ffalm.federate.deploy.process_log import escape_records, keep_rotating, start_log

if TYPE_CHECKING:
    from flwr.app import Message

log = logging.getLogger("ffalm.federate")

#: The log's line, followed by the number of the node, when the coordinator has admitted the site.
LET_IN = "Let in by the coordinator as node"
#: The log's line when the coordinator refuses this site's signature.
REFUSED = "The coordinator refuses this site's signature."

_HELD = 0.5  # seconds: the coordinator held a request that took longer until there was news
_SHORT_PAUSE, _LONG_PAUSE = 0.05, 3.0  # seconds between two requests that it did not hold
_SHORT_PAUSES = 10  # in a row


class SiteNode:
    """A site that is connected: one question after the other."""

    def __init__(self, fleet: FleetClient, answers: AnswerProcess) -> None:
        self._fleet, self._answers = fleet, answers
        self._quick = 0  # requests in a row that brought nothing and were not held

    def serve(self) -> None:
        """Answer until the process is told to end; no error of a question, or of the coordinator, ends it."""
        from flwr.supercore.run import RunNotRunningException

        while True:
            try:
                self.look()
            except RunNotRunningException:
                log.info("The run that asked has ended.")
            except Exception as error:
                if not _is_refusal(error):  # `_refused` logs it
                    log.exception("A question could not be taken, or its answer not sent; the site goes on.")
                time.sleep(_LONG_PAUSE)

    def look(self) -> None:
        """Ask for a message once, and answer it if there is one."""
        began = time.monotonic()
        found = self._fleet.take()
        if found is None:
            self._pause(time.monotonic() - began)
            return
        self._quick = 0
        message, objects = found
        kind = message.metadata.message_type
        log.info("Asked: %s", kind)
        began = time.monotonic()
        answer = self._answers.answer(message.metadata.message_id, objects) or _no_answer(message)
        seconds = time.monotonic() - began
        self._fleet.give(message.metadata.run_id, answer, seconds)
        log.info("Answered: %s, after %.2f s", kind, seconds)

    def _pause(self, took: float) -> None:
        """Pause before the next request: not if the coordinator held the last one, long if it never does."""
        if took >= _HELD:
            self._quick = 0
        else:
            self._quick += 1
            time.sleep(_SHORT_PAUSE if self._quick <= _SHORT_PAUSES else _LONG_PAUSE)


def _no_answer(message: Message) -> Encoded:
    """The error for the coordinator if the answering process died."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    log.error("The process that was to answer has died; the next question gets a new one.")
    return encoded(Message(Error(ErrorCode.CLIENT_APP_CRASHED), reply_to=message))


def _is_refusal(error: Exception) -> bool:
    import httpx

    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.UNAUTHORIZED


def _refused(*_: object) -> None:
    """Log a refusal: Flower interrupts a process that gets a 401. (Ctrl-C only reaches the command that started this.)

    The site goes on: it is admitted again as soon as both clocks are right.
    """
    log.error(REFUSED)


def main() -> None:
    """Connect, and serve until told to end."""
    folder, address, insecure = Path(sys.argv[1]), sys.argv[2], "--insecure" in sys.argv[3:]
    start_log()
    escape_records()
    keep_rotating()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, _refused)
    answers = AnswerProcess(folder)
    answers.warm_up()
    with connected(folder, address, insecure) as fleet:
        log.info("%s %d", LET_IN, fleet.node)
        SiteNode(fleet, answers).serve()


if __name__ == "__main__":
    main()
