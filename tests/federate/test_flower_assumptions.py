"""What we assume of Flower's and Ray's inside, which no interface promises: one canary each.

One that fails after an upgrade names the assumption and the module of ours that rests on it. pyproject.toml pins one
minor version of flwr for this reason.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'ffalm[flower]'")

from ffalm.federate.deploy import bundle, control, fleet_gateway, long_polling, operations, status
from ffalm.system.quiet import QUIET

ROOT = Path(__file__).parents[2]


def source(module: str) -> str:
    return inspect.getsource(import_module(module))


def test_the_installed_flower_is_the_minor_version_that_pyproject_pins() -> None:
    (pinned,) = [
        line
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["flower"]
        if line.startswith("flwr")
    ]
    lower, upper = re.findall(r"\d+\.\d+", pinned)
    major, minor = map(int, lower.split("."))
    assert upper == f"{major}.{minor + 1}", "pin one minor version of flwr: ffalm rests on its inside"
    assert version("flwr").startswith(f"{lower}."), "the canaries below speak for another version of flwr"


def test_flower_has_the_command() -> None:
    found = entry_points(group="console_scripts", name="flower-superlink")
    assert len(found) == 1, "flwr has no command flower-superlink, which deploy/fleet_gateway starts"


def test_the_superlink_serves_by_one_call_of_uvicorn_run() -> None:
    said = source("flwr.superlink.cli.flower_superlink")
    call = re.findall(r"uvicorn\.run\((.*?)\n    \)", said, re.DOTALL)
    assert len(call) == 1, "deploy/fleet_gateway replaces uvicorn.run, which flower-superlink no longer calls once"
    for name in ("app=", "host=", "port="):
        assert name in call[0], f"deploy/fleet_gateway takes {name[:-1]} from flower-superlink's call of uvicorn.run"


def test_the_interface_for_sites_has_its_own_path_and_the_other_ones_lie_outside_it() -> None:
    from flwr.superlink.routers.control.router import router as control_router
    from flwr.superlink.routers.fleet.router import router as fleet_router

    prefix = f"{fleet_router.prefix}/"
    assert prefix == fleet_gateway.FOR_SITES, "deploy/fleet_gateway lets the wrong requests of strangers in"
    assert not control_router.prefix.startswith(fleet_gateway.FOR_SITES.rstrip("/")), "strangers could start runs"
    served = {getattr(route, "path", "") for route in fleet_router.routes} | {bundle.TAKE, bundle.GIVE}
    assert served >= fleet_gateway.REQUESTS, "deploy/fleet_gateway lets requests through that Flower no longer serves"


def test_a_connection_yields_the_calls_that_a_site_makes_in_their_order() -> None:
    said = source("flwr.supernode.fleet_http_connection")
    yielded = re.findall(r"yield \((.*?)\)", said, re.DOTALL)
    calls = ["node.node_id", "receive", "send", "get_run", "get_fab", "pull_object", "push_object"]
    assert len(yielded) == 1 and re.findall(r"[\w.]+", yielded[0]) == [*calls, "confirm_message_received"], (
        "deploy/fleet_client takes the calls by their place"
    )
    assert said.count("generate_key_pairs()") == 1, "deploy/fleet_client chooses the key of an insecure site"


def test_flower_s_clients_take_any_path() -> None:
    from flwr.supercore.protobuf.client import ProtobufClient

    asked = inspect.signature(ProtobufClient._unary_unary).parameters
    assert {"path", "rpc_method", "request", "response_type"} <= asked.keys(), "deploy/bundle sends by _unary_unary"


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("flwr.superlink.servicer.fleet.fleet_handlers", "pull_messages", ["request", "state", "store"]),
        ("flwr.superlink.servicer.fleet.fleet_handlers", "push_messages", ["request", "state"]),
        ("flwr.superlink.servicer.runtime.runtime_handlers", "pull_messages", ["request", "state", "task"]),
        ("flwr.superlink.servicer.runtime.runtime_handlers", "push_messages", ["request", "state", "task"]),
    ],
)
def test_flower_handles_messages_by_functions_that_bundles_call(module: str, name: str, arguments: list[str]) -> None:
    found = list(inspect.signature(getattr(import_module(module), name)).parameters)
    assert found == arguments, f"deploy/message_bundles calls {name} of {module}"


def test_a_message_that_was_received_is_deleted_from_the_store_and_nothing_more() -> None:
    for module in ("fleet.fleet_handlers", "runtime.runtime_handlers"):
        function = import_module(f"flwr.superlink.servicer.{module}").confirm_message_received
        assert "store.delete(request.message_object_id)" in inspect.getsource(function), (
            "deploy/message_bundles deletes what a complete bundle holds, as Flower does when it is told so"
        )


def test_an_object_that_is_still_on_its_way_and_one_that_is_gone_are_told_apart() -> None:
    said = source("flwr.supercore.inflatable.inflatable_protobuf_utils")
    assert "raise ObjectUnavailableError(object_id)" in said and "raise ObjectPullError(object_id" in said, (
        "deploy/bundled_grid waits for the first and gives up the second"
    )


def test_the_state_has_what_bundles_ask_of_it() -> None:
    from flwr.server.superlink.linkstate import LinkState

    for name in ("get_node_id_by_public_key", "get_task_by_token", "store_object", "object_store", "delete_messages"):
        assert hasattr(LinkState, name), f"deploy/message_bundles uses {name} of Flower's state"


def test_the_state_tells_which_nodes_are_online() -> None:
    from flwr.server.superlink.linkstate import LinkState
    from flwr.supercore.constant import NodeStatus

    assert "statuses" in inspect.signature(LinkState.get_node_info).parameters, "deploy/fleet_gateway counts sites"
    assert NodeStatus.ONLINE == "online"


def test_a_run_reaches_the_superlink_by_the_client_of_its_grid() -> None:
    from flwr.superlink.grid.http_grid import HttpGrid

    grid = HttpGrid(token="one")
    assert isinstance(inspect.getattr_static(grid, "_runtime_client"), property), "deploy/bundled_grid sends by it"
    assert hasattr(grid, "node") and isinstance(inspect.getattr_static(grid, "run"), property)
    assert "status_code == httpx.codes.FORBIDDEN" in source("flwr.supercore.retry.http_retry"), (
        "deploy/message_bundles answers 403 where a run has ended"
    )


def test_a_site_that_is_answered_401_is_interrupted() -> None:
    for module in ("flwr.supercore.retry.http_retry", "flwr.supernode.fleet_http_connection"):
        assert "os.kill(os.getpid(), signal.SIGINT)" in source(module), "deploy/site_node takes SIGINT for a refusal"


@pytest.mark.parametrize("path", ["/v1/runtime/push-object", "/v1/fleet/push-object"])
def test_objects_that_do_not_fit_a_bundle_are_sent_by_the_requests_that_we_watch(path: str) -> None:
    prefix, _, name = path.rpartition("/")
    module = "flwr.superlink.routers.fleet" if "fleet" in prefix else "flwr.supercore.routers.runtime"
    said = source(f"{module}.router")
    assert f'"{prefix}"' in said and f'@router.post("/{name}")' in said, f"deploy/long_polling watches {path}"
    assert any(path in sent_by for _, sent_by in long_polling.LOOKS.values())


def test_bundles_of_sites_pass_the_gateway_and_those_of_runs_do_not() -> None:
    assert bundle.TAKE.startswith(fleet_gateway.FOR_SITES) and bundle.GIVE.startswith(fleet_gateway.FOR_SITES)
    assert not bundle.SEND.startswith(fleet_gateway.FOR_SITES) and not bundle.COLLECT.startswith(
        fleet_gateway.FOR_SITES
    )


@pytest.mark.parametrize(
    ("text", "module", "ours"),
    [
        (control._KNOWN_KEY, "flwr.server.superlink.linkstate.sql_linkstate", "deploy/control"),
        ("Using SuperLink", "flwr.cli.utils", "deploy/control"),
        ('"node-id"', "flwr.cli.supernode.register", "deploy/control"),
        ('"run-id"', "flwr.cli.run.run", "deploy/control"),
        ('"status-details"', "flwr.cli.ls", "deploy/control"),
        ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "flwr.supercore.superexec.run_superexec", "deploy/processes"),
    ],
)
def test_flower_still_writes_the_text(text: str, module: str, ours: str) -> None:
    assert text in source(module), f"{ours} looks for {text!r} in what Flower writes"


def test_the_refusals_of_a_site_have_the_codes_that_we_explain() -> None:
    from flwr.supercore.error.base import ApiErrorCode

    codes = {f"[code: {int(code)}]" for code in ApiErrorCode}
    ours = [sign for sign in operations._REFUSALS if sign.startswith("[code")]
    assert ours and set(ours) <= codes, "deploy/operations explains codes that Flower no longer has"
    assert f"[code: {int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)}]" == operations._UNKNOWN_KEY


def test_a_node_has_the_statuses_that_we_translate() -> None:
    from flwr.supercore.constant import NodeStatus

    assert {NodeStatus.REGISTERED, NodeStatus.ONLINE, NodeStatus.OFFLINE, NodeStatus.UNREGISTERED} == set(status._WORDS)


@pytest.mark.parametrize("name", [name for name in QUIET if name.startswith("FLWR_")])
def test_flower_reads_the_variables_that_keep_it_quiet(name: str) -> None:
    modules = ("supercore.telemetry", "supercore.constant", "supercore.update_check", "superlink.cli.flower_superlink")
    assert any(name in source(f"flwr.{module}") for module in modules), (
        f"ffalm.system.quiet sets {name}, which nobody reads"
    )


def test_ray_lists_and_ends_actors_as_the_simulation_needs() -> None:
    pytest.importorskip("ray")
    from ray._private import state, worker
    from ray._raylet import CoreWorker  # type: ignore[attr-defined]

    assert callable(state.actors) and hasattr(worker, "global_worker"), "engines/flower/simulated uses ray._private"
    assert hasattr(CoreWorker, "kill_actor"), "engines/flower/simulated ends clients by CoreWorker.kill_actor"


def test_ray_reads_its_token_again_when_told() -> None:
    pytest.importorskip("ray")
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    assert hasattr(AuthenticationTokenLoader, "reset_cache") and hasattr(Config, "initialize"), (
        "engines/flower/simulated sets a token after Ray was imported"
    )
