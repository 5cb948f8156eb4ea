"""Metrics of a coordinator in Prometheus' text format, on the loopback interface only.

They are of the federation as a whole: nothing here is of a single site or of rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ffalm
from ffalm.federate.deploy import follow
from ffalm.federate.deploy.fleet_gateway import Traffic
from ffalm.federate.deploy.folder import FederationFolder

log = logging.getLogger("ffalm.federate")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK = "127.0.0.1"
_HOSTS = ("127.0.0.1", "localhost")
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


class MetricsServer:
    """Serves `/metrics` to this machine."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
                if self.path != "/metrics" or host not in _HOSTS:
                    self.send_error(404)
                    return
                try:
                    body = text().encode()
                except Exception:
                    log.exception("The metrics could not be read.")
                    self.send_error(500)
                    return
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((_LOOPBACK, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    def start(self) -> None:
        """Serve from a thread."""
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


def _metric(name: str, kind: str, help: str, samples: Iterable[Sample]) -> list[str]:
    values = [f"ffalm_{name}{_labels(labels)} {value:.17g}" for labels, value in samples]
    return [f"# HELP ffalm_{name} {help}", f"# TYPE ffalm_{name} {kind}", *values] if values else []


def _plain(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, float(value))]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
