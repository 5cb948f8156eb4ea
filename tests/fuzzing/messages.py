"""Messages of a federation with something changed, as sites and coordinators are sent them.

Each is read, or refused with an error of the project's own; a sum of masked numbers is right or there is none.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from unittest.mock import patch

import torch
from tests.federate.makers import NAMES
from tests.fuzzing.federations import Recorded, Spoiled, copied, has, lead, prepare
from tests.fuzzing.http_requests import bundle, gateway, polling
from tests.fuzzing.mutations import changed_bytes, changed_message, changed_text
from tests.fuzzing.outcomes import Hang, Outcome, limited, place_of
from tests.fuzzing.secure_sums import secure_sum

from ffalm.engines.remote.message import Failure, Message
from ffalm.errors import UserError
from ffalm.federate.coordinator.agreement import agree
from ffalm.federate.coordinator.federated_audit import REQUEST, AuditRequest, audit_sites
from ffalm.federate.description import Description
from ffalm.federate.secure.aggregator import TooFew
from ffalm.federate.site.answering import answer
from ffalm.federate.terms import SiteTerms

__all__ = ["Recorded", "prepare", "run"]

_SHARES = {
    "site": 4, "coordinator": 1, "secure coordinator": 0.2, "blind coordinator": 0.2, "description": 4, "terms": 4,
    "sum": 4, "wire": 5, "bundle": 3, "gateway": 2, "polling": 2, "audit": 0.1,
}  # fmt: skip


def _to_site(draws: random.Random, number: int, made: Recorded) -> str:
    """A changed question is answered or refused, and the site goes on to answer the true one, or refuses it."""
    one = draws.choice(made.asked)
    question = one.question
    for _ in range(draws.choice((1, 1, 1, 2, 3))):
        question = changed_message(draws, question)
    with copied(one.folder, number) as folder:
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
    with copied(made.here / f"{place}-fresh", number) as folder:
        known = made.known if place == "plain" else None
        most = 20 if place == "blind" else 7
        sites = Spoiled({name: folder / name for name in fresh}, draws, known, most)
        try:
            outcome = lead(made.plans[place], folder / "run", sites)
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
    told = [str(one.question.facts["terms"]) for one in made.asked if "terms" in one.question.facts]
    terms = SiteTerms.from_text(changed_text(draws, draws.choice(told)))
    SiteTerms.from_text(terms.to_text())
    return "read"


def _audit(draws: random.Random, number: int, made: Recorded, place: str) -> str:
    """An audit with a changed request, or of a site that answers changed messages, counts rows or stops."""
    request = AuditRequest(score=draws.choice(("age", "hours")), decision=40.0)
    if draws.random() < 0.2:
        request = AuditRequest(prediction="job")  # which holds no labels
    with copied(made.here / f"{place}-fresh", number) as folder:
        run = folder / "audit"
        run.mkdir()
        request.write(run)
        if draws.random() < 0.3:
            (run / REQUEST).write_text(changed_text(draws, (run / REQUEST).read_text()), encoding="utf-8")
        sites = Spoiled({name: folder / name for name in made.folders[place]}, draws, None)
        try:
            found = audit_sites(made.plans[place], run, sites, pause=0.0)
        except UserError as error:
            sentence = str(error)
            assert sentence.isprintable(), f"not a sentence: {sentence[:200]!r}"
            return f"refused after{sites.spoiled}"
        assert 0 <= found.rows <= 10**6, f"{found.rows} rows"
        rates = [one.metrics["selection_rate"].value for one in found.groupings[0].groups]
        assert all(math.isnan(rate) or -1e-9 <= rate <= 1 + 1e-9 for rate in rates), f"impossible: {rates}"
        json.dumps(found.to_dict())
    return f"audited after{sites.spoiled}"


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


def run(number: int, seed: int, made: Recorded) -> tuple[Outcome, str]:
    """One case by its number."""
    draws = random.Random(f"{seed}-{number}")
    surfaces = dict(_SHARES)
    if "secure" not in made.plans:
        needed = ("secure coordinator", "blind coordinator", "sum")
        surfaces = {name: share for name, share in surfaces.items() if name not in needed}
    if not has("flwr"):
        surfaces = {
            name: share for name, share in surfaces.items() if name not in ("wire", "bundle", "gateway", "polling")
        }
    surface = draws.choices(list(surfaces), list(surfaces.values()))[0]
    calls: dict[str, Callable[[], str]] = {
        "site": lambda: _to_site(draws, number, made),
        "coordinator": lambda: _to_coordinator(draws, number, made, "plain"),
        "secure coordinator": lambda: _to_coordinator(draws, number, made, "secure"),
        "blind coordinator": lambda: _to_coordinator(draws, number, made, "blind"),
        "description": lambda: _description(draws, made),
        "terms": lambda: _terms(draws, made),
        "sum": lambda: secure_sum(draws),
        "wire": lambda: _wire(draws, made),
        "bundle": lambda: bundle(draws),
        "gateway": lambda: gateway(draws),
        "polling": lambda: polling(draws),
        "audit": lambda: _audit(draws, number, made, draws.choice(sorted(made.plans))),
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
