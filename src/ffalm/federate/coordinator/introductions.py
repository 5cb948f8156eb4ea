"""Which sites are connected: they introduce themselves and describe their data, leave and return.

A node is one connection, a site is a name. A site that returns, on the same node or a new one, is the same site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable

import ffalm
from ffalm.engines.remote.message import Fact, Failure, Message, Sites, printable
from ffalm.errors import UserError
from ffalm.federate.coordinator.absences import Absences
from ffalm.federate.coordinator.agreement import common_kinds
from ffalm.federate.coordinator.strangers import stranger
from ffalm.federate.coordinator.waiting import Retries
from ffalm.federate.description import Description
from ffalm.federate.federation_config import FederationConfig, SharedTable
from ffalm.settings import to_plain

GREETING = 60.0  # seconds that a node has to say who it is

Say = Callable[[str, str], None]
"""Takes the coordinator's state in a word, and a sentence about it."""

Owner = Callable[[int], str | None]
"""Gives the site whose key a node has; None if that is not known."""


class Introductions:
    """The sites that have introduced themselves, and what they said.

    A node that introduces itself by another name than that of its key's `owner` is refused.
    """

    def __init__(
        self, sites: Sites, config: FederationConfig, owner: Owner, absences: Absences, say: Say, pause: float
    ) -> None:
        self._sites, self._config, self._owner, self._say = sites, config, owner, say
        self.absences = absences
        self.columns: list[str] | None = None  # of which statistics are asked for, once the sites have agreed
        self.nodes: dict[str, int] = {}
        self.met: dict[int, str] = {}  # every node that has introduced itself, and as which site
        self.told: dict[str, Description] = {}
        self.terms: dict[str, str] = {}  # the key of the terms that a site said to hold
        self.versions: dict[str, str] = {}  # of ffalm at the sites
        self._asked: dict[str, set[str]] = {}  # the columns that a site was asked to describe
        self._ignored: set[int] = set()  # nodes that are none of our sites
        self._retries = Retries(pause, config.rules.patience)
        self._noted: dict[str, str] = {}  # what was told last of a site

    def meet(self, describe: bool) -> None:
        """Drop the nodes that are gone and greet those that are new, or that gave no good answer before."""
        present = set(self._sites.present())
        self._ignored &= present
        self._retries.keep(present)
        for node in self.absences.unanswered.keys() - present:
            del self.absences.unanswered[node]
        self.nodes = {site: node for site, node in self.nodes.items() if node in present}
        known = {*self.nodes.values(), *self._ignored}
        self.greet([node for node in present - known if self._retries.due(node)], describe)

    def greet(self, nodes: Iterable[int], describe: bool, columns: Collection[str] | None = None) -> None:
        """Ask nodes for their names and, if `describe`, for their data, with statistics of `columns` only."""
        if self.columns is not None:
            columns = self.columns
        elif columns is None and isinstance(self._config.data, SharedTable):
            columns = self._config.data.columns or None
        facts: dict[str, Fact] = {"describe": describe, "min_group": self._config.rules.min_group}
        facts["version"] = ffalm.__version__
        facts["data"] = json.dumps(to_plain(self._config.data))
        if columns is not None:
            facts["columns"] = json.dumps(columns)
        asked = dict.fromkeys(sorted(nodes), Message(facts=facts))
        if asked:
            answers = self._sites.ask("hello", asked, min(GREETING, self._config.rules.deadline))
            for node, answer in sorted(answers.items()):
                self._hear(node, answer)

    def describe_common(self) -> None:
        """Ask for statistics of the columns that the federation will use, and of no others.

        A site with an unusable column is refused, which may change the columns of most sites: then ask again.
        """
        while True:
            try:
                kinds = common_kinds(self._config, self.told) or {}
            except UserError:
                return  # the attempt to agree reports it
            asked = [
                site for site in self.told if site in self.nodes and not kinds.keys() <= self._asked.get(site, set())
            ]
            if not asked:
                return
            for site in asked:
                self._asked[site] = set(kinds)
            self.greet([self.nodes[site] for site in asked], True, sorted(kinds))

    def forget(self, site: str) -> None:
        """Treat a site as gone, so that it must introduce itself again."""
        self.nodes.pop(site, None)

    def ask_again(self, sites: Iterable[str]) -> None:
        """Let sites introduce themselves and describe their data anew."""
        for site in sites:
            self.forget(site)
            self._forget_description(site)
            self.absences.refused.pop(site, None)

    def accepted(self, site: str, terms: str) -> None:
        """Note that a site holds these terms now."""
        self.terms[site] = terms
        self._retries.answered(self.nodes[site])
        self._noted.pop(site, None)

    def refuse(self, state: str, site: str, error: UserError) -> None:
        """Note why a site cannot take part."""
        self.absences.refused[site] = f"The site {site!r} cannot take part: {error}"
        self._note(state, site, self.absences.refused[site])

    def unanswered(self, state: str, node: int, site: str | None, what: str, failure: Failure) -> None:
        """Note that a node gave no answer, and tell it; it is asked again later."""
        who = f"The node {node}" if site is None else f"The site {site!r}"
        self.absences.unanswered[node] = site, f"{who} {what}: {failure.reason}"
        self._retries.failed(node, late=failure.kind == "late")
        self._note(state, site or who, f"{who} {what}: {failure.reason}")

    def _hear(self, node: int, answer: Message | Failure) -> None:
        if isinstance(answer, Failure):
            owner = self._owner(node) or next((site for site, its in self.nodes.items() if its == node), None)
            self.unanswered("meeting", node, owner, "did not introduce itself", answer)
            for site in [site for site, its in self.nodes.items() if its == node]:
                self.forget(site)
                self._forget_description(site)
            return
        self.absences.unanswered.pop(node, None)
        site = printable(str(answer.facts.get("name", "")))
        if self.nodes.get(site, node) != node:
            twice = f"A second node introduces itself as the site {site!r}: it must wait until the first is gone."
            self._note("meeting", f"node {node}", twice)
            return
        problem = stranger(self._config, site, self._owner(node))
        if problem:
            self._ignored.add(node)
            self._say("meeting", problem)
            self._sites.ask("agree", {node: Message(facts={"refused": problem})}, GREETING)
            return
        back = self.nodes.get(site) is None
        if back:
            self._compare_versions(site, printable(str(answer.facts.get("version", "before 0.3"))))
        self.nodes[site], self.met[node] = node, site
        self.absences.earlier.pop(site, None)
        self.terms[site] = str(answer.facts.get("terms", ""))
        if back:
            self.absences.refused.pop(site, None)
            self._forget_description(site)
        self._take_description(site, answer)

    def _compare_versions(self, site: str, theirs: str) -> None:
        self.versions[site] = theirs
        if theirs != ffalm.__version__:
            self._say(
                "meeting",
                f"The site {site!r} runs ffalm {theirs}, the coordinator {ffalm.__version__}: use the same version "
                "everywhere if messages cannot be read.",
            )

    def _take_description(self, site: str, answer: Message) -> None:
        try:
            if "misfit" in answer.facts:
                raise UserError(printable(str(answer.facts["misfit"])))
            if "description" in answer.facts:
                told = Description.from_json(str(answer.facts["description"]))
                self.told[site] = told.after(self.told.get(site))
                if told.columns is not None:
                    self._asked.setdefault(site, set()).update(told.columns.columns)
        except UserError as error:
            self._forget_description(site)
            self.refuse("meeting", site, error)

    def _forget_description(self, site: str) -> None:
        self.told.pop(site, None)
        self._asked.pop(site, None)

    def _note(self, state: str, site: str, sentence: str) -> None:
        """Tell something of a site, once: it is asked again at every look, and mostly says the same."""
        if self._noted.get(site) != sentence:
            self._noted[site] = sentence
            self._say(state, sentence)
