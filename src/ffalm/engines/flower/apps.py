"""The two ends of a federation as Flower knows them: one server app and one client app for every algorithm."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ffalm.engines.flower.sites import GridSites
from ffalm.engines.flower.wire import packed, packed_failure, unpacked
from ffalm.engines.remote.message import Fact, Kind, Message, Sites
from ffalm.errors import UserError
from ffalm.plugins import blamed

Lead = Callable[[Sites, dict[str, Fact]], None]
"""What a server does: given its sites and the run's settings."""

Answer = Callable[[Kind, Message, dict[str, Fact]], Message]
"""What a site does: given the kind of request, its message, and the settings of its node."""


def server_app(lead: Lead, sites: Callable[[Grid], Sites] = GridSites) -> ServerApp:
    """A Flower server that runs `lead` on its sites; `sites` makes them from a grid."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        lead(sites(grid), dict(context.run_config))

    return app


def client_app(answer: Answer, traces: bool = False) -> ClientApp:
    """A Flower client that answers requests by `answer`.

    Only the public part of a `UserError` reaches the server, and only the type of any other error: the rest may quote a
    row and stays in the site's log. `traces` sends all of it, for simulated clients.
    """
    app = ClientApp()

    def answering(kind: Kind) -> Callable[[FlowerMessage, Context], FlowerMessage]:
        def respond(message: FlowerMessage, context: Context) -> FlowerMessage:
            return FlowerMessage(_answered(answer, kind, message, dict(context.node_config), traces), reply_to=message)

        return respond

    app.query("hello")(answering("hello"))
    app.query("agree")(answering("agree"))
    app.query("secure")(answering("secure"))
    app.train()(answering("train"))
    app.evaluate()(answering("score"))
    return app


def _answered(answer: Answer, kind: Kind, message: FlowerMessage, node: dict[str, Fact], traces: bool) -> RecordDict:
    try:
        return packed(answer(kind, unpacked(message.content), node))
    except UserError as error:
        return packed_failure(str(error) if traces else error.public)
    except Exception as error:
        logging.getLogger("flwr").exception("The question %r could not be answered.", kind)
        if traces:
            fault = blamed(error)
            if fault is not None:
                return packed_failure(str(fault))
            return packed_failure(f"{type(error).__name__}: {error}", traceback.format_exc())
        return packed_failure(f"An unforeseen error ({type(error).__name__}) arose; the site's log says where.")
