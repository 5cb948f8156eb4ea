"""How a site reads a coordinator's questions: malformed ones are refused with a sentence, before any work.

Another version of ffalm or a malicious coordinator may send anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ffalm.engines import Snapshot
from ffalm.engines.jobs import Model
from ffalm.engines.remote.message import Message, same_form, understood
from ffalm.engines.remote.round_messages import received
from ffalm.errors import require_public
from ffalm.federate.site_data import SharedData, shared_data
from ffalm.federate.terms import SiteTerms
from ffalm.privacy import LEDGER
from ffalm.system.files import parsed_json


def read_greeting(asked: Message) -> tuple[SharedData, list[str] | None, int]:
    """The data that the federation needs, the columns to describe (None if none are named yet), and its `min_group`."""
    with understood():
        given, columns = parsed_json(str(asked.facts["data"])), parsed_json(str(asked.facts.get("columns", "null")))
        min_group = int(asked.facts.get("min_group", 0))
    named = columns is None or (isinstance(columns, list) and all(isinstance(name, str) for name in columns))
    require_public(isinstance(given, dict) and named, "The coordinator's question does not say which data it wants.")
    require_public(0 <= min_group < 2**53, "The coordinator's min_group is no number of rows.")
    return shared_data({"data": given}), columns, min_group


def read_round(asked: Message, terms: SiteTerms, fresh: Model, counts: Tensor) -> tuple[Snapshot, int]:
    """The model and state of the run, and the last round in which this site's answer counted.

    `fresh` is a model of the agreed form, `counts` are this site's training rows per (label, group).
    """
    with understood():
        _, sent, _ = received(asked)
        counted = int(asked.facts.get("counted", sent.round))
    known = 0 <= counted <= sent.round < terms.training.rounds
    require_public(known, "The coordinator asks for a round that was not agreed.")
    check_model(sent.model, fresh)
    algorithm = terms.contender.algorithm
    state = {name: value for name, value in sent.state.items() if name != LEDGER}
    some = counts.cpu().clamp(min=1)  # the form of the state is that of any rows
    starts = [algorithm.start(terms.task, torch.stack([some] * clients)) for clients in (1, 2)]
    for name, like in starts[0].items():
        needed = name in algorithm.broadcasts or algorithm.needs_only_sums
        found = state.pop(name, None)
        fits = found is not None and found.ndim == like.ndim and found.is_floating_point() == like.is_floating_point()
        if found is not None and starts[1][name].shape == like.shape:  # else it has an entry for each client
            fits = fits and found.shape == like.shape
        require_public(fits or not (needed or found is not None), f"The state that was sent lacks a sound {name!r}.")
    strange = [name for name in state if name not in algorithm.broadcasts]
    require_public(not strange, "The state that was sent has an entry that was not agreed.")
    for name, vector in sent.vectors.items():
        parts = name in algorithm.server_vectors and vector.keys() <= fresh.keys()
        require_public(parts, "The coordinator sends a vector that was not agreed.")
        check_model(vector, {key: fresh[key] for key in vector})
    wanted = [name for name in algorithm.server_vectors if name in algorithm.broadcasts]
    require_public(sent.vectors.keys() >= set(wanted), "The coordinator's question lacks a vector of the algorithm.")
    return sent, counted


def check_model(model: Mapping[str, Tensor], fresh: Model) -> None:
    """Refuse a model that does not have the agreed form."""
    require_public(same_form(model, fresh), "The model that was sent does not have the agreed form.")
