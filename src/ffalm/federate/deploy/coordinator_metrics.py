"""Metrics of a coordinator in Prometheus' text format, on the loopback interface only.

They are about the federation as a whole, not about single sites or rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import ffalm
from ffalm.federate.deploy import follow
from ffalm.federate.deploy.fleet_gateway import Traffic
from ffalm.federate.deploy.folder import FederationFolder
from ffalm.system.loopback_server import LoopbackServer, Page

log = logging.getLogger("ffalm.federate")

CONTENT_TYPE = "text/plain; version=0.0.4"
_GAPS = ("dpd", "eod")

Sample = tuple[Mapping[str, str], float]


def metrics_text(folder: FederationFolder, traffic: Traffic, online: int) -> str:
    """All metrics as of now; those that are not known yet are left out."""
    records = follow.records(folder)
    last = records[-1] if records else {}
    scored: Mapping[str, Any] = next((one for one in reversed(records) if one.get("accuracy") is not None), {})
    gaps = [({"metric": name}, float(scored[name])) for name in _GAPS if scored.get(name) is not None]
    refused = [({"status": str(status)}, float(count)) for status, count in sorted(traffic.refused.items())]
    spent = [float(one["epsilon"]) for one in records if one.get("epsilon") is not None]
    rounds = folder.facts.get("training", {}).get("rounds")
    lines = [
        *_metric("info", "gauge", "Version of the coordinator.", [({"version": ffalm.__version__}, 1.0)]),
        *_metric("sites", "gauge", "Sites of the federation.", _plain(len(folder.sites))),
        *_metric("sites_online", "gauge", "Sites that are connected.", _plain(online)),
        *_metric("rounds_planned", "gauge", "Rounds that the run is to have.", _plain(rounds)),
        *_metric("round", "gauge", "Last complete round of the run.", _plain(last.get("round", 0))),
        *_metric("run_finished", "gauge", "1 once the run has a result.", _plain(follow.result(folder) is not None)),
        *_metric("round_seconds", "gauge", "Seconds that the last round took.", _plain(last.get("seconds"))),
        *_metric("accuracy", "gauge", "Accuracy on held-out rows of all sites.", _plain(scored.get("accuracy"))),
        *_metric("gap", "gauge", "Gap between groups on held-out rows of all sites.", gaps),
        *_metric("epsilon_spent", "gauge", "Epsilon of differential privacy.", _plain(max(spent, default=None))),
        *_metric("received_bytes_total", "counter", "Bytes of requests from the network.", _plain(traffic.received)),
        *_metric("sent_bytes_total", "counter", "Bytes of answers to the network.", _plain(traffic.sent)),
        *_metric("refused_requests_total", "counter", "Requests from the network that were refused.", refused),
    ]
    return "\n".join(lines) + "\n"


def superlink_metrics(app: Any, folder: Path, traffic: Traffic) -> Callable[[], str]:
    """The metrics of a federation whose sites a SuperLink's application knows."""
    from flwr.supercore.constant import NodeStatus

    def text() -> str:
        online = app.state.linkstate_factory.state().get_node_info(statuses=[NodeStatus.ONLINE])
        return metrics_text(FederationFolder(folder), traffic, len(online))

    return text


def serve_metrics(port: int, text: Callable[[], str]) -> LoopbackServer:
    """Serve `/metrics` to this machine, from a thread."""

    def answer(path: str) -> Page:
        if path != "/metrics":
            return Page(HTTPStatus.NOT_FOUND, "Metrics are at /metrics")
        try:
            return Page(HTTPStatus.OK, text(), CONTENT_TYPE)
        except Exception:
            log.exception("The metrics could not be read.")
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, "The metrics could not be read.")

    server = LoopbackServer(port, answer)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _metric(name: str, kind: str, help: str, samples: Iterable[Sample]) -> list[str]:
    values = [f"ffalm_{name}{_labels(labels)} {value:.17g}" for labels, value in samples]
    return [f"# HELP ffalm_{name} {help}", f"# TYPE ffalm_{name} {kind}", *values] if values else []


def _plain(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, float(value))]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
