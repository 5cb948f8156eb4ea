"""Which sites are connected and which are members: sites introduce themselves, agree to the terms, leave and return.

A node is one connection, a site is a name. A site that returns, on the same node or a new one, is the same member.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

import ffalm
from ffalm.engines.remote.message import Fact, Failure, Message, Sites, printable
from ffalm.errors import UserError
from ffalm.federate.coordinator.absences import Absences, too_few
from ffalm.federate.coordinator.agreement import Agreement, NoneFits, agree, common_kinds, misfit, without_small_groups
from ffalm.federate.coordinator.robust_aggregation import capped
from ffalm.federate.coordinator.strangers import stranger
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.description import Description
from ffalm.federate.federation_config import FederationConfig, SharedTable
from ffalm.settings import to_plain

_GREETING = 60.0  # seconds that a node has to say who it is
_SILENCE = 60.0  # seconds until a node that did not answer is greeted again: it may be busy with old questions

Say = Callable[[str, str], None]
"""Takes the coordinator's state in a word, and a sentence about it."""

Owner = Callable[[int], str | None]
"""Gives the site whose key a node has; None if that is not known."""


class Members:
    """The sites of a federation as the coordinator knows them.

    A node that introduces itself by another name than that of its key's `owner` is refused.
    """

    def __init__(
        self, sites: Sites, config: FederationConfig, owner: Owner, say: Say, pause: float, run: str = ""
    ) -> None:
        self.run = run  # a name that no other run has
        self._sites, self._config, self._owner, self._say, self._pause = sites, config, owner, say, pause
        self.agreement: Agreement | None = None
        self.counts: dict[str, Counts] = {}  # of members
        self.absences = Absences(config.sites)
        self.versions: dict[str, str] = {}  # of ffalm at the sites
        self._nodes: dict[str, int] = {}
        self._holds: dict[str, str] = {}  # the key of the terms that a site holds
        self._current: set[str] = set()  # sites whose `counts` are of their last agreement; unknown after a restart
        self._told: dict[str, Description] = {}
        self._asked: dict[str, set[str]] = {}  # the columns that a site was asked to describe
        self._ignored: set[int] = set()  # nodes that are none of our sites
        self._keys: dict[str, str] = {}  # of each site's terms
        self._silent: dict[int, float] = {}  # nodes that gave no greeting in time, and when to try again
        self._noted: dict[str, str] = {}  # what was told last of a site

    @property
    def refused(self) -> dict[str, str]:
        """Why a site's file does not fit, or which terms it does not accept."""
        return self.absences.refused

    @property
    def left_out(self) -> dict[str, str]:
        """The reason of each site that takes no part; a member that is only away is missed in single rounds."""
        return self.absences.reasons(self.counts)

    @property
    def agreed(self) -> Agreement:
        """The agreement, once there is one."""
        assert self.agreement is not None
        return self.agreement

    def rows(self) -> Tensor:
        """Training rows per (client, label, group) of the whole federation; a site that is no member has none.

        Only the sums over cells are exact: see `Counts.training`. The rule `max_share` bounds a site's rows.
        """
        task = self.agreed.task
        nobody = torch.zeros(task.labels, task.groups, dtype=torch.int64)
        rows = torch.stack(
            [self.counts[site].training() if site in self.counts else nobody for site in self._config.sites]
        )
        return rows if self._config.rules.max_share == 1 else capped(rows, self._config.rules.max_share)

    def node(self, site: str) -> int | None:
        """The node of a member that is connected and has agreed; None for any other site."""
        ready = site in self.counts and self._holds.get(site) == self.key(site)
        return self._nodes.get(site) if ready else None

    def key(self, site: str) -> str:
        """The key of a site's terms."""
        if site not in self._keys:
            self._keys[site] = self.agreed.terms(site, self._config, self.run).key
        return self._keys[site]

    @property
    def common(self) -> str:
        """The key of the terms that all sites have in common."""
        return self.agreed.terms(self._config.sites[0], self._config, self.run).common_key

    def forget(self, site: str) -> None:
        """Treat a site as gone, so that it must introduce itself again."""
        self._nodes.pop(site, None)

    def agree_first(self) -> None:
        """Wait for the sites, then fix task and encoding for the whole run.

        Sites are asked for statistics only when all are connected or patience is over: before, the columns of the first
        few sites would pass for those of most sites.
        """
        until = time.monotonic() + self._config.rules.patience
        waits, problem = self._config.rules.misfit == "wait", ""  # a fixed file may solve the problem
        while True:
            self._meet(describe=True)
            over = time.monotonic() >= until
            if over or not self._missing():
                self._describe_common()
                found, problem = self._attempt()
                if over or not (self._missing() or (waits and (problem or self.refused))):
                    break
            if waits and problem:  # it may be in any file
                problem = ""
                self._ask_again(list(self._told))
            self._wait(self._missing())
        if problem or found is None:
            told = [problem, *(reason for reason in self.left_out.values() if reason not in problem)]
            why = " ".join(told).strip() or "No site came."
            raise UserError(f"{why} Nothing was trained; fix that and run again.")
        self._stop_where_misfit()
        self.agreement = found
        for site, reason in self.refused.items():
            self._turn_away(site, reason)
        self._bind([site for site in self._told if site in self._nodes and site not in self.refused])
        self._leave_out_small_groups()

    def _leave_out_small_groups(self) -> None:
        """Agree again if the sites' counts show groups with too few rows to be compared."""
        told = [counts.told["train"] for counts in self.counts.values()]
        if not told:
            return
        changed = without_small_groups(self.agreed, torch.stack(told).sum(0))
        if changed is not self.agreement:
            sites = list(self.counts)
            self.agreement = changed
            self.counts.clear()
            self._keys.clear()
            self._bind([site for site in sites if site in self._nodes])

    def gather(self) -> None:
        """Wait for all members while patience lasts; enough of them must have agreed.

        A member that is refused is not waited for. If too many sites are, and the federation does not wait for their
        files to be fixed, stop at once.
        """
        rules = self._config.rules
        until = time.monotonic() + rules.patience
        while True:
            self.settle()
            present = self.absences.present(self.counts)
            few = len(present) < rules.min_sites
            missing = [site for site in self._awaited(present, few) if self.node(site) is None]
            if not missing and not few and not self._must_wait():
                return
            possible = len({*self.counts, *self._config.active} - self.refused.keys())
            if time.monotonic() >= until or (possible < rules.min_sites and not self._must_wait()):
                break
            self._wait(missing)
        self._stop_where_misfit()
        reasons = list(self.absences.reasons().values())
        if possible < rules.min_sites:
            raise UserError(
                f"Only {possible} of the {rules.min_sites} sites that a round needs can take part. "
                f"{' '.join(reasons)} Fix that and run again; what was trained is kept."
            )
        if few:
            raise UserError(too_few(len(present), rules.min_sites, rules.patience, reasons))

    def _awaited(self, present: Collection[str], few: bool) -> Collection[str]:
        """The members to wait for: not those that are refused.

        Nor those that were refused before a restart and are gone, unless the others are too few or `misfit` is "wait".
        """
        if few or self._config.rules.misfit == "wait":
            return [site for site in self.counts if site not in self.refused]
        return present

    def settle(self) -> None:
        """Greet new nodes, admit the sites that fit, and send the terms to members that do not hold them."""
        self._meet(describe=False)
        strangers = [site for site in self._nodes if site not in self.counts and site not in self.refused]
        self._greet([self._nodes[site] for site in strangers if site not in self._told], describe=True)
        for site in strangers:
            if site in self._told:
                reason = misfit(self.agreed, site, self._told[site])
                if reason:
                    self._turn_away(site, reason)
        here = [
            site for site in self._nodes if site not in self.refused and (site in self.counts or site in self._told)
        ]
        self._bind([site for site in here if site not in self.counts or self._holds.get(site) != self.key(site)])

    def _describe_common(self) -> None:
        """Ask for statistics of the columns that the federation will use, and of no others.

        A site with an unusable column is refused, which may change the columns of most sites: then ask again.
        """
        while True:
            try:
                kinds = common_kinds(self._config, self._told) or {}
            except UserError:
                return  # `_attempt` reports it
            asked = [
                site for site in self._told if site in self._nodes and not kinds.keys() <= self._asked.get(site, set())
            ]
            if not asked:
                return
            for site in asked:
                self._asked[site] = set(kinds)
            self._greet([self._nodes[site] for site in asked], True, sorted(kinds))

    def _attempt(self) -> tuple[Agreement | None, str]:
        """The agreement of the sites so far, or the problem that prevents one."""
        if not self._told:
            return None, ""
        for site in self._told:  # what was odd among fewer sites may be usual among more
            self.refused.pop(site, None)
        try:
            found, wrong = agree(self._config, self._told)
        except NoneFits as error:
            self.refused.update(error.misfits)
            return None, str(error)
        except UserError as error:
            return None, str(error)
        self.refused.update(wrong)
        return found, ""

    def _missing(self) -> list[str]:
        return [site for site in self._config.active if site not in self._told and site not in self.refused]

    def _must_wait(self) -> bool:
        return self._config.rules.misfit == "wait" and bool(self.refused)

    def _stop_where_misfit(self) -> None:
        if self._must_wait():
            reasons = " ".join(self.refused.values())
            raise UserError(
                f"{reasons} The rule 'misfit' is \"wait\", and patience is over: fix the files, or set misfit to "
                '"go_on", and run again.'
            )

    def _wait(self, missing: Iterable[str]) -> None:
        """Pause before looking again; under misfit = "wait", sites whose file does not fit will be asked again."""
        names = ", ".join([*missing, *(self.refused if self._must_wait() else ())])
        self._say("waiting", f"Waiting for {names or 'more sites'}, {self._config.rules.patience:g} seconds at most.")
        if self._must_wait():
            self._ask_again(list(self.refused))
        time.sleep(self._pause)

    def _ask_again(self, sites: Iterable[str]) -> None:
        """Let sites introduce themselves and describe their data anew."""
        for site in sites:
            self.forget(site)
            self._forget_description(site)
            self.refused.pop(site, None)

    def _meet(self, describe: bool) -> None:
        """Drop the nodes that are gone and greet those that are new."""
        present = set(self._sites.present())
        self._ignored &= present
        for node in self.absences.unanswered.keys() - present:
            del self.absences.unanswered[node]
        self._nodes = {site: node for site, node in self._nodes.items() if node in present}
        known = {*self._nodes.values(), *self._ignored}
        now = time.monotonic()
        self._greet([node for node in present - known if self._silent.get(node, now) <= now], describe)

    def _forget_description(self, site: str) -> None:
        self._told.pop(site, None)
        self._asked.pop(site, None)

    def _greet(self, nodes: Iterable[int], describe: bool, columns: Collection[str] | None = None) -> None:
        """Ask nodes for their names and, if `describe`, for their data, with statistics of `columns` only."""
        if self.agreement is not None:
            columns = list(self.agreement.kinds() or ())
        elif columns is None and isinstance(self._config.data, SharedTable):
            columns = self._config.data.columns or None
        facts: dict[str, Fact] = {"describe": describe, "min_group": self._config.rules.min_group}
        facts["version"] = ffalm.__version__
        facts["data"] = json.dumps(to_plain(self._config.data))
        if columns is not None:
            facts["columns"] = json.dumps(columns)
        asked = dict.fromkeys(sorted(nodes), Message(facts=facts))
        if asked:
            answers = self._sites.ask("hello", asked, min(_GREETING, self._config.rules.deadline))
            for node, answer in sorted(answers.items()):
                self._hear(node, answer)

    def _hear(self, node: int, answer: Message | Failure) -> None:
        if isinstance(answer, Failure):
            owner = self._owner(node) or next((site for site, its in self._nodes.items() if its == node), None)
            self._note_unanswered("meeting", node, owner, f"did not introduce itself: {answer.reason}")
            if answer.kind == "late":
                self._silent[node] = time.monotonic() + min(_SILENCE, self._config.rules.patience)
            for site in [site for site, its in self._nodes.items() if its == node]:
                self.forget(site)
                self._forget_description(site)
            return
        self.absences.unanswered.pop(node, None)
        site = printable(str(answer.facts.get("name", "")))
        if self._nodes.get(site, node) != node:
            self._say(
                "meeting",
                f"A second node introduces itself as the site {site!r}: it must wait until the first is gone.",
            )
            return
        problem = stranger(self._config, site, self._owner(node))
        if problem:
            self._ignored.add(node)
            self._say("meeting", problem)
            self._sites.ask("agree", {node: Message(facts={"refused": problem})}, _GREETING)
            return
        back = self._nodes.get(site) is None
        if back:
            self._compare_versions(site, printable(str(answer.facts.get("version", "before 0.3"))))
        self._nodes[site] = node
        self.absences.earlier.pop(site, None)
        self._holds[site] = str(answer.facts.get("terms", "")) if site in self._current else ""
        if back:
            self.refused.pop(site, None)
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
                self._told[site] = told.after(self._told.get(site))
                if told.columns is not None:
                    self._asked.setdefault(site, set()).update(told.columns.columns)
        except UserError as error:
            self._forget_description(site)
            self.refused[site] = f"The site {site!r} cannot take part: {error}"
            self._note("meeting", site, self.refused[site])

    def _bind(self, sites: Iterable[str]) -> None:
        """Send the terms, and admit the sites that accept them."""
        asked = {self._nodes[site]: site for site in sorted(sites, key=self._config.sites.index)}
        if not asked:
            return
        terms = {site: self.agreed.terms(site, self._config, self.run) for site in asked.values()}
        messages = {node: Message(facts={"terms": terms[site].to_text()}) for node, site in asked.items()}
        answers = self._sites.ask("agree", messages, self._config.rules.deadline)
        for node, site in asked.items():
            self._admit(site, answers[node], terms[site].key)

    def _admit(self, site: str, answer: Message | Failure, key: str) -> None:
        self._current.discard(site)
        if isinstance(answer, Failure):
            node = self._nodes[site]
            self._note_unanswered("agreeing", node, site, f"did not agree to the terms: {answer.reason}")
            self.forget(site)
            return
        try:
            if "misfit" in answer.facts:
                raise UserError(printable(str(answer.facts["misfit"])))
            counts = Counts.of(answer.tensors.get("counts", {}), self.agreed.task)
            before = self.counts.get(site)
            if before and not before.agrees(counts):
                raise UserError("its training rows are not those that it agreed to have.")
        except UserError as error:
            self.refused[site] = f"The site {site!r} cannot take part: {error}"
            self._note("agreeing", site, self.refused[site])
            return
        self.counts[site], self._holds[site] = counts, key
        self._current.add(site)
        self._noted.pop(site, None)
        self._say("agreeing", f"The site {site!r} takes part with {counts.rows} training rows.")

    def _note_unanswered(self, state: str, node: int, site: str | None, what: str) -> None:
        """Note that a node gave no answer, and tell it."""
        who = f"The node {node}" if site is None else f"The site {site!r}"
        self.absences.unanswered[node] = site, f"{who} {what}"
        self._note(state, site or who, f"{who} {what}")

    def _note(self, state: str, site: str, sentence: str) -> None:
        """Tell something of a site, once: it is asked again at every look, and mostly says the same."""
        if self._noted.get(site) != sentence:
            self._noted[site] = sentence
            self._say(state, sentence)

    def _turn_away(self, site: str, reason: str) -> None:
        """Leave a site out, and send it the reason."""
        self.refused[site] = reason
        self._say("agreeing", f"{reason} It is left out.")
        if site in self._nodes:
            self._sites.ask("agree", {self._nodes[site]: Message(facts={"refused": reason})}, _GREETING)
