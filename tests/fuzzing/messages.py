"""Messages of a federation with something changed, as sites and coordinators are sent them.

Each is read, or refused with an error of the project's own; a sum of masked numbers is right or there is none.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from tests.federate.makers import NAMES, World, config, exchange_keys, people, site_folder
from tests.federate.secure.parties import Attempt, layout, numbers
from tests.fuzzing.mutations import changed_bytes, changed_message, changed_text
from tests.fuzzing.outcomes import Hang, Outcome, limited, place_of

from ffalm.engines.remote.message import Failure, Kind, Message, Sites
from ffalm.errors import UserError
from ffalm.federate.answer_ledger import digest
from ffalm.federate.coordinator.agreement import agree
from ffalm.federate.coordinator.federated_run import coordinate
from ffalm.federate.description import Description
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.secure.aggregator import TooFew
from ffalm.federate.secure.protocol import Offer, Passed
from ffalm.federate.site.answering import answer
from ffalm.federate.terms import SiteTerms

_ROWS = (40, 36, 44)
_TARGET = "dpd <= 0.2"
_WORDS = (np.uint32, np.uint64, np.int64, np.float32)
_SHARES = {
    "site": 4, "coordinator": 1, "secure coordinator": 0.2, "description": 4, "terms": 4, "sum": 4, "wire": 5,
    "bundle": 3, "gateway": 2,
}  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """A question, the answer to it, and the site's folder as it was before."""

    kind: Kind
    question: Message
    answer: Message
    folder: Path


@dataclass
class Recorded:
    """What a plain and a secure federation said, and their settings."""

    here: Path
    plans: dict[str, FederationConfig] = field(default_factory=dict)
    folders: dict[str, dict[str, Path]] = field(default_factory=dict)
    asked: list[_Asked] = field(default_factory=list)
    known: dict[str, Message] = field(default_factory=dict)  # answers of the plain federation's sites


class _Recording(World):
    """Keeps what the first site is asked, and its folder before it answers."""

    def __init__(self, folders: Mapping[str, Path], into: Recorded, place: str) -> None:
        super().__init__(folders)
        self._into, self._place = into, place

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        before = self._into.here / f"{self._place}-{len(self._into.asked)}"
        if name == NAMES[0]:
            shutil.copytree(self.folders[name], before)
        given = super()._answer(kind, name, message)
        assert isinstance(given, Message), given
        if name == NAMES[0]:
            self._into.asked.append(_Asked(kind, message, given, before))
        return given


class _Spoiled(World):
    """A world in which some answers are changed. What a site has answered before is not computed again."""

    def __init__(self, folders: Mapping[str, Path], draws: random.Random, known: dict[str, Message] | None) -> None:
        super().__init__(folders)
        self._draws, self._known = draws, known
        self._spoiler, self._spoil_at = draws.choice(NAMES[:3]), draws.randrange(7 if known is None else 5)
        self._answers, self.spoiled = 0, ""

    def _answer(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        given = self._honest(kind, name, message)
        if name != self._spoiler or isinstance(given, Failure):
            return given
        self._answers += 1
        if self._answers - 1 != self._spoil_at and not (self.spoiled and self._draws.random() < 0.3):
            return given
        self.spoiled += f" {kind}"
        for _ in range(self._draws.choice((1, 1, 2))):
            given = changed_message(self._draws, given)
        return given

    def _honest(self, kind: Kind, name: str, message: Message) -> Message | Failure:
        if self._known is None or "refused" in message.facts:
            return super()._answer(kind, name, message)
        facts = {key: value for key, value in message.facts.items() if key not in ("terms", "counted")}
        if kind == "agree":
            facts["terms"] = SiteTerms.from_text(str(message.facts["terms"])).run_key
        key = f"{kind} {name} {facts} {digest(message.tensors)}"
        if key not in self._known:
            given = super()._answer(kind, name, message)
            if isinstance(given, Failure):
                return given
            self._known[key] = given
        return self._known[key]


def prepare(here: Path, secure: bool = True) -> Recorded:
    """Two small federations, each led to its end once; a secure one takes most of the time."""
    logging.getLogger("ffalm.federate").setLevel(logging.CRITICAL)
    made = Recorded(here)
    for place in ("plain", "secure") if secure and _has("cryptography") else ("plain",):
        made.plans[place] = config(
            training={"rounds": 1, "batch_size": 32}, model={"name": "mlp", "hidden": [2]}, target=_TARGET,
            repair="none", rules={"secure": place == "secure", "patience": 0.0, "min_sites": 2},
        )  # fmt: skip
        folders = {
            name: site_folder(here / f"{place}-sites", name, people(rows, seed))
            for seed, (name, rows) in enumerate(zip(NAMES[:3], _ROWS, strict=True))
        }
        if place == "secure":
            exchange_keys(folders)
        made.folders[place] = {name: here / f"{place}-fresh" / name for name in folders}
        shutil.copytree(here / f"{place}-sites", here / f"{place}-fresh")
        _lead(made.plans[place], here / f"{place}-run", _Recording(folders, made, place))
    return made


def _lead(plan: FederationConfig, run: Path, sites: Sites) -> Any:
    return coordinate(plan, run, sites, pause=0.0)


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


@contextmanager
def _copied(folder: Path, number: int) -> Iterator[Path]:
    copy = folder.with_name(f"case-{number}")
    shutil.copytree(folder, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _to_site(draws: random.Random, number: int, made: Recorded) -> str:
    """A changed question is answered or refused, and the site goes on to answer the true one, or refuses it."""
    one = draws.choice(made.asked)
    question = one.question
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        question = changed_message(draws, question)
    with _copied(one.folder, number) as folder:
        before = {name: (folder / name).read_bytes() for name in ("rows.csv", "site.toml")}
        said = "answered"
        try:
            given = answer(one.kind, question, {"site": str(folder)})
            assert isinstance(given, Message)
        except UserError as error:
            said = _whole(error)
        assert before == {name: (folder / name).read_bytes() for name in before}, "a site's own file changed"
        try:
            answer(one.kind, one.question, {"site": str(folder)})
        except UserError as error:
            _whole(error)
    return said


def _whole(error: UserError) -> str:
    sentence = error.public
    assert sentence and sentence.isprintable(), f"not a sentence: {sentence[:200]!r}"
    return "refused"


def _to_coordinator(draws: random.Random, number: int, made: Recorded, place: str) -> str:
    """A federation in which one site's answers are changed comes to its end, or stops with a sentence."""
    fresh = made.folders[place]
    with _copied(made.here / f"{place}-fresh", number) as folder:
        known = made.known if place == "plain" else None
        sites = _Spoiled({name: folder / name for name in fresh}, draws, known)
        try:
            outcome = _lead(made.plans[place], folder / "run", sites)
        except UserError as error:
            sentence = str(error)
            assert sentence.isprintable(), f"not a sentence: {sentence[:200]!r}"
            return f"refused after{sites.spoiled}"
        fractions = [outcome.test[name] for name in ("accuracy", "dpd", "eod", "worst_group_accuracy")]
        assert all(math.isnan(value) or -1e-9 <= value <= 1 + 1e-9 for value in fractions), f"impossible: {fractions}"
        for file in ("events.jsonl", "report.md"):
            text = (folder / "run" / file).read_text() if (folder / "run" / file).exists() else ""
            assert "\x1b" not in text, f"control characters in {file}"
    return "finished"


def _description(draws: random.Random, made: Recorded) -> str:
    """A changed description is refused, or agreed with: the encoding holds finite numbers."""
    told = [str(one.answer.facts["description"]) for one in made.asked if "description" in one.answer.facts]
    honest, plan = Description.from_json(told[-1]), made.plans["plain"]
    read = Description.from_json(changed_text(draws, draws.choice(told)))
    found, wrong = agree(plan, {NAMES[0]: read, NAMES[1]: honest, NAMES[2]: honest})
    assert NAMES[1] not in wrong or NAMES[0] not in wrong, "nobody fits"
    if found.encoding is not None:
        text = found.encoding.to_json()
        assert "NaN" not in text and "Infinity" not in text, "an encoding that is not finite"
    return "agreed" if NAMES[0] not in wrong else "left out"


def _terms(draws: random.Random, made: Recorded) -> str:
    told = [str(one.question.facts["terms"]) for one in made.asked if one.kind == "agree"]
    terms = SiteTerms.from_text(changed_text(draws, draws.choice(told)))
    SiteTerms.from_text(terms.to_text())
    return "read"


def _sum(draws: random.Random) -> str:
    """A changed move of a secure sum ends the attempt, or the sum is that of the sites in it."""
    plan = layout(4, 3)
    own = numbers(4, draws.randrange(100), 3)
    attempt = Attempt(plan, {client: plan.words(one) for client, one in own.items()})
    dropped = {3: draws.choice(("offer", "mask", "reveal"))} if draws.random() < 0.5 else {}
    move, who = draws.choice(("offer", "passed", "words", "shares", "lists", "signature")), draws.randrange(3)
    attempt.offers(dropped)  # type: ignore[arg-type]
    if move == "offer":
        attempt.gathering.take(who, Offer.from_text(changed_text(draws, attempt.gathering.offers[who].to_text())))
    if not attempt.gathering.enough(attempt.gathering.offers):
        raise TooFew("offers")
    if move == "passed":
        passed = attempt.gathering.passed
        attempt.gathering.passed = lambda client: _passed(draws, passed(client))  # type: ignore[method-assign]
    attempt.masks(dropped)  # type: ignore[arg-type]
    if not attempt.gathering.enough(attempt.masked):
        raise TooFew("masked")
    if move == "words":
        words = {
            name: np.resize(value, draws.choice((0, 1, value.size + 1, value.size))).astype(draws.choice(_WORDS))
            for name, value in attempt.masked[who].items()
        }
        if plan.fits(words):
            return "fits"  # a site may say what it likes
        del attempt.masked[who]
        if not attempt.gathering.enough(attempt.masked):
            raise TooFew("masked")
    if move == "lists":
        inside, outside = attempt.gathering.lists(attempt.masked)
        one = draws.randrange(-1, 6)
        strange = (inside, [*outside, one]) if draws.random() < 0.5 else ([*inside, one], outside)
        attempt.gathering.lists = lambda summed: strange  # type: ignore[method-assign]
    attempt.reveals(dropped)  # type: ignore[arg-type]
    if move == "shares":
        told = attempt.told[who]
        attempt.told[who] = {
            draws.choice((key, key, 9, -1)): changed_bytes(draws, share) for key, share in told.items()
        }
    found = plan.values(attempt.total())
    for name, value in found.items():
        true = sum(own[client][name] for client in attempt.masked)
        assert np.abs(value - true).max() < 1e-6, f"a wrong sum after {move}"
    return "right sum"


def _passed(draws: random.Random, passed: dict[int, Passed]) -> dict[int, Passed]:
    from dataclasses import replace

    if not passed:
        return passed
    client, name = draws.choice(sorted(passed)), draws.choice(("mask_key", "signature", "sealed", "digests"))
    value = getattr(passed[client], name)
    changed: Any = [changed_text(draws, one) for one in ([value] if isinstance(value, str) else value)]
    changed = changed[0] if isinstance(value, str) else tuple(changed)
    return {**passed, client: replace(passed[client], **{name: changed})}


def _wire(draws: random.Random, made: Recorded) -> str:
    """Bytes of a message that are changed on the way make another message, or a failure that the round survives."""
    from flwr.app import Array, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto
    from flwr.supercore.task_identity import TaskIdentity
    from google.protobuf.message import DecodeError

    from ffalm.engines.flower.sites import _read
    from ffalm.engines.flower.wire import packed

    one = draws.choice(made.asked)
    content: RecordDict = packed(draws.choice((one.question, one.answer)))
    if draws.random() < 0.5:
        record = content.array_records["tensors"]
        for name, array in list(record.items()):
            record[name] = Array(array.dtype, array.shape, array.stype, changed_bytes(draws, array.data))
    else:
        try:
            proto = Proto.FromString(changed_bytes(draws, recorddict_to_proto(content).SerializeToString()))
            content = recorddict_from_proto(proto)
        except (DecodeError, ValueError, TypeError, KeyError, UnicodeDecodeError, AttributeError):
            return "refused by Flower"
    with patch.multiple(TaskIdentity, _run_id=1, _node_id=1, _task_id=1):
        read = _read(FlowerMessage(content, dst_node_id=1, message_type="train"))
    if isinstance(read, Failure):
        assert read.reason.isprintable()
        return "failure"
    assert all(isinstance(value, torch.Tensor) for entries in read.tensors.values() for value in entries.values())
    return "read"


def _bundle(draws: random.Random) -> str:
    """A request with a changed bundle gets a status of HTTP."""
    from flwr.proto import fleet_pb2, runtime_pb2
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers
    from google.protobuf.wrappers_pb2 import BytesValue
    from tests.federate.deploy.test_message_bundles import KEY, NODE, TOKEN, Superlink

    from ffalm.federate.deploy.bundle import COLLECT, GIVE, SEND, TAKE, joined
    from ffalm.federate.deploy.message_bundles import MessageBundles

    path = draws.choice((GIVE, SEND, GIVE, SEND, TAKE, COLLECT))
    fields: dict[str, Any] = {"node": {"node_id": NODE}, "messages_list": [{"metadata": {"src_node_id": NODE}}]}
    request = fleet_pb2.PushMessagesRequest(**fields)
    parts = [draws.randbytes(draws.randrange(40)) for _ in range(draws.randrange(4))]
    parts = [request.SerializeToString(), *parts] if draws.random() < 0.5 else parts
    body = BytesValue(value=joined(parts)).SerializeToString()
    body = changed_bytes(draws, body) if draws.random() < 0.7 else body
    nothing = fleet_pb2.PullMessagesResponse(), runtime_pb2.PullAppMessagesResponse()
    stored = fleet_pb2.PushMessagesResponse(objects_to_push=["a"]), runtime_pb2.PushAppMessagesResponse()
    with (
        patch.object(fleet_handlers, "pull_messages", lambda *_: nothing[0]),
        patch.object(fleet_handlers, "push_messages", lambda *_: stored[0]),
        patch.object(runtime_handlers, "pull_messages", lambda *_: nothing[1]),
        patch.object(runtime_handlers, "push_messages", lambda *_: stored[1]),
    ):
        return str(_status(MessageBundles(_nobody, Superlink()), path, _headers(draws, KEY, TOKEN), body))


def _gateway(draws: random.Random) -> str:
    from ffalm.federate.deploy.fleet_gateway import FleetGateway

    length = draws.choice((b"0", b"-1", b"9" * 30, b"x", b"", b"1e3", "\u0663".encode(), b"5"))
    paths = ("/v1/fleet/x", "/", "/v1/fleet/../x", "/v1/fleet/register-node", "", "/v1/runtime/x", "\x00")
    headers = [(b"content-length", length)]
    gateway = FleetGateway(_nobody, ("127.0.0.1", 1), None, 100)
    return str(_status(gateway, draws.choice(paths), headers, draws.randbytes(draws.randrange(300))))


def _headers(draws: random.Random, key: bytes, token: str) -> list[tuple[bytes, bytes]]:
    from base64 import b64encode

    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, TASK_TOKEN_HEADER

    right = {FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key), TASK_TOKEN_HEADER: token.encode()}
    return [
        (name.lower().encode(), value if draws.random() < 0.7 else changed_bytes(draws, value))
        for name, value in right.items()
        if draws.random() < 0.9
    ]


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] == "http.request":
        break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def _status(app: Any, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "path": path, "headers": headers, "server": ("0.0.0.0", 2)}, receive, send))
    status = int(sent[0]["status"])
    assert status in (200, 400, 401, 403, 413), status
    return status


def run(number: int, seed: int, made: Recorded) -> tuple[Outcome, str]:
    """One case by its number."""
    draws = random.Random(f"{seed}-{number}")
    surfaces = dict(_SHARES)
    if "secure" not in made.plans:
        surfaces = {name: share for name, share in surfaces.items() if name not in ("secure coordinator", "sum")}
    if not _has("flwr"):
        surfaces = {name: share for name, share in surfaces.items() if name not in ("wire", "bundle", "gateway")}
    surface = draws.choices(list(surfaces), list(surfaces.values()))[0]
    calls: dict[str, Callable[[], str]] = {
        "site": lambda: _to_site(draws, number, made),
        "coordinator": lambda: _to_coordinator(draws, number, made, "plain"),
        "secure coordinator": lambda: _to_coordinator(draws, number, made, "secure"),
        "description": lambda: _description(draws, made),
        "terms": lambda: _terms(draws, made),
        "sum": lambda: _sum(draws),
        "wire": lambda: _wire(draws, made),
        "bundle": lambda: _bundle(draws),
        "gateway": lambda: _gateway(draws),
    }
    try:
        with limited():
            return Outcome(True, f"{surface}: {calls[surface]()}"), surface
    except (UserError, TooFew):
        return Outcome(True, f"{surface}: refused"), surface
    except Hang as error:
        return Outcome(False, "hang", place_of(error)), surface
    except AssertionError as error:
        return Outcome(False, f"{surface}: {str(error)[:60]}", place_of(error)), surface
    except Exception as error:
        return Outcome(False, f"{surface}: traceback", place_of(error)), surface
