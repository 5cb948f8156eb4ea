"""Metrics are what Prometheus reads, of the federation as a whole, and for this machine alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections import Counter
from collections.abc import MutableMapping
from typing import Any

import pytest

pytest.importorskip("flwr", reason="real federations need the extra 'flower'")

from ffalm.federate.deploy.coordinator_metrics import metrics_text, serve_metrics
from ffalm.federate.deploy.fleet_gateway import FleetGateway, Receive, Scope, Send, Traffic
from ffalm.federate.deploy.folder import FederationFolder

LINE = re.compile(r'ffalm_[a-z_]+(\{[a-z]+="[^"]*"\})? -?[0-9.e+-]+')


def _values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), text
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_before_the_first_round_there_is_what_is_known(clinics: FederationFolder) -> None:
    found = _values(metrics_text(clinics, Traffic(), 1))
    assert (found["ffalm_sites"], found["ffalm_sites_online"], found["ffalm_round"]) == (2, 1, 0)
    assert "ffalm_accuracy" not in found and "ffalm_epsilon_spent" not in found


def test_rounds_scores_privacy_and_traffic_are_told_and_no_sites_name(clinics: FederationFolder) -> None:
    clinics.run.mkdir()
    records = [
        {"round": 1, "seconds": 2.5, "accuracy": 0.75, "dpd": 0.125, "eod": None, "epsilon": 0.5},
        {"round": 2, "seconds": 1.5, "epsilon": 0.75, "answered": ["north"]},
    ]
    (clinics.run / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    text = metrics_text(clinics, Traffic(10, 20, Counter({401: 3})), 2)
    found = _values(text)
    assert (found["ffalm_round"], found["ffalm_round_seconds"], found["ffalm_epsilon_spent"]) == (2, 1.5, 0.75)
    assert (found["ffalm_accuracy"], found['ffalm_gap{metric="dpd"}']) == (0.75, 0.125)
    assert (found["ffalm_received_bytes_total"], found["ffalm_sent_bytes_total"]) == (10, 20)
    assert found['ffalm_refused_requests_total{status="401"}'] == 3
    assert found["ffalm_run_finished"] == 0
    assert "north" not in text and "eod" not in text


def test_they_are_served_on_loopback_to_those_who_ask_for_it() -> None:
    server = serve_metrics(0, lambda: "ffalm_round 3\n")
    try:
        assert server.server_address[0] == "127.0.0.1"
        for path, host, status in (
            ("/metrics", f"localhost:{server.server_port}", 200),
            ("/", f"localhost:{server.server_port}", 404),
            ("/metrics", "evil.example", 403),
        ):
            link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
            link.request("GET", path, headers={"Host": host})
            answer = link.getresponse()
            assert answer.status == status
            assert (answer.read() == b"ffalm_round 3\n") == (status == 200)
            link.close()
    finally:
        server.shutdown()
        server.server_close()


def test_the_gateway_counts_what_the_network_sends_gets_and_is_refused() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"four"})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"three"}

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    traffic = Traffic()
    gateway = FleetGateway(app, ("127.0.0.1", 1), traffic=traffic)
    for server, path in ((2, "/v1/fleet/activate-node"), (2, "/v1/control/start-run"), (1, "/v1/control/start-run")):
        asyncio.run(gateway({"type": "http", "path": path, "server": ("127.0.0.1", server)}, receive, send))
    assert (traffic.received, traffic.sent, dict(traffic.refused)) == (5, 4, {403: 1})
