"""A site that lies, as a plugin of its own `site.toml`: the processes that answer for it tell what `attack.txt` in its
folder names, and nothing is changed at the coordinator or at any other site. See `attacked_federation.py`.

It is imported while the site that is to answer is made, so it changes the methods from which something leaves a site.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import lies
from ffalm.data.types import Examples
from ffalm.engines import Snapshot
from ffalm.engines.remote.message import Message
from ffalm.engines.remote.round_messages import answered
from ffalm.engines.server import ClientUpdate
from ffalm.federate.disclosure import Disclosed
from ffalm.federate.site.answering import LocalSite
from ffalm.federate.terms import SiteTerms


def _attack(site: LocalSite) -> str:
    return (site._folder / lies.ATTACK_FILE).read_text(encoding="utf-8").strip()


class _Lies:
    """Methods of `LocalSite`, each around the true one."""

    def agree(self: LocalSite, asked: Message) -> Message:
        message = _TRUE["agree"](self, asked)
        for name in ("rows", "train") if "counts" in message.tensors else ():
            message.tensors["counts"][name] = lies.claimed(_attack(self), message.tensors["counts"][name])
        return message

    def train(self: LocalSite, asked: Message) -> Message:
        message = _TRUE["train"](self, asked)
        message.facts["rows"] = int(lies.claimed(_attack(self), torch.tensor(message.facts["rows"])))
        return message

    def _compared(self: LocalSite, rows: Examples, terms: SiteTerms) -> Examples:
        return lies.trained_rows(_attack(self), _TRUE["_compared"](self, rows, terms))

    def _disclosed(self: LocalSite, update: ClientUpdate, sent: Snapshot, counts: Tensor, terms: SiteTerms) -> Message:
        message = _TRUE["_disclosed"](self, lies.measured(_attack(self), update), sent, counts, terms)
        false = lies.told(_attack(self), answered(message), sent)
        message.tensors["model"] = false.model
        if false.state is not None:
            message.tensors["state"] = false.state
        return message

    def _scored(self: LocalSite, *arguments: Any) -> Disclosed:
        true = _TRUE["_scored"](self, *arguments)
        attack = _attack(self)
        if attack not in lies.SCORES or true.histogram is None:
            return true
        return replace(true, histogram=lies.told_scores(true.histogram, lies.SCORES[attack]))


_CHANGED = [name for name, value in vars(_Lies).items() if inspect.isfunction(value)]
_TRUE: dict[str, Any] = {name: getattr(LocalSite, name) for name in _CHANGED}
for _name in _CHANGED:
    setattr(LocalSite, _name, vars(_Lies)[_name])
