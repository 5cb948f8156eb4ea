"""Which sites are members: they agree to the terms, are refused, leave and return."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from ffalm.engines.remote.message import Failure, Message, Sites, printable
from ffalm.errors import UserError
from ffalm.federate.coordinator.absences import Absences, too_few
from ffalm.federate.coordinator.agreement import Agreement, NoneFits, agree, misfit, without_small_groups
from ffalm.federate.coordinator.introductions import GREETING, Introductions, Owner, Say
from ffalm.federate.coordinator.robust_aggregation import capped
from ffalm.federate.coordinator.update_validation import Counts
from ffalm.federate.coordinator.waiting import Patience, waiting_for
from ffalm.federate.federation_config import FederationConfig

_CLOSING = 10.0  # seconds that a site has to confirm why the run has ended


class Members:
    """The sites of a federation as the coordinator knows them."""

    def __init__(
        self, sites: Sites, config: FederationConfig, owner: Owner, say: Say, pause: float, run: str = ""
    ) -> None:
        self.run = run  # a name that no other run has
        self._sites, self._config, self._say, self._pause = sites, config, say, pause
        self.agreement: Agreement | None = None
        self.counts: dict[str, Counts] = {}  # of members
        self.absences = Absences(config.sites)
        self._met = Introductions(sites, config, owner, self.absences, say, pause)
        self._current: set[str] = set()  # sites whose `counts` are of their last agreement; unknown after a restart
        self._keys: dict[str, str] = {}  # of each site's terms

    @property
    def versions(self) -> dict[str, str]:
        """The version of ffalm at each site that has introduced itself."""
        return self._met.versions

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
        return self._met.nodes.get(site) if self._ready(site) else None

    def _ready(self, site: str) -> bool:
        """Whether a member's counts are of the terms that it holds."""
        return site in self.counts and site in self._current and self._met.terms.get(site) == self.key(site)

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
        self._met.forget(site)

    def agree_first(self) -> None:
        """Wait for the sites, then fix task and encoding for the whole run.

        Sites are asked for statistics only when all are connected or patience is over: before, the columns of the first
        few sites would pass for those of most sites.
        """
        patience = Patience(self._config.rules.patience)
        waits, problem = self._config.rules.misfit == "wait", ""  # a fixed file may solve the problem
        while True:
            self._met.meet(describe=True)
            over = patience.over
            if over or not self._missing():
                self._met.describe_common()
                found, problem = self._attempt()
                if over or not (self._missing() or (waits and (problem or self.refused))):
                    break
            if waits and problem:  # it may be in any file
                problem = ""
                self._met.ask_again(list(self._met.told))
            self._wait(self._missing(), patience, len(self._met.told))
        if problem or found is None:
            told = [problem, *(reason for reason in self.left_out.values() if reason not in problem)]
            why = " ".join(told).strip() or "No site came."
            raise UserError(f"{why} Nothing was trained; fix that and run again.")
        self._stop_where_misfit()
        self.agreement = found
        for site, reason in self.refused.items():
            self._turn_away(site, reason)
        self._bind([site for site in self._met.told if site in self._met.nodes and site not in self.refused])
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
            self._bind([site for site in sites if site in self._met.nodes])

    def gather(self) -> None:
        """Wait for all members while patience lasts; enough of them must have agreed.

        A member that is refused is not waited for. If too many sites are, and the federation does not wait for their
        files to be fixed, stop at once.
        """
        rules = self._config.rules
        patience = Patience(rules.patience)
        while True:
            self.settle()
            present = self.absences.present(self.counts)
            few = len(present) < rules.min_sites
            missing = [site for site in self._awaited(present, few) if self.node(site) is None]
            if not missing and not few and not self._must_wait():
                return
            possible = len({*self.counts, *self._config.active} - self.refused.keys())
            if patience.over or (possible < rules.min_sites and not self._must_wait()):
                break
            self._wait(missing, patience, len(present) - len(missing))
        self._stop_where_misfit()
        reasons = list(self.absences.reasons().values())
        if possible < rules.min_sites:
            raise UserError(
                f"Only {possible} of the {rules.min_sites} sites that a round needs can take part. "
                f"{' '.join(reasons)} Fix that and run again; what was trained is kept."
            )
        if few:
            raise too_few(len(present), rules.min_sites, rules.patience, reasons)

    def _awaited(self, present: Collection[str], few: bool) -> Collection[str]:
        """The members to wait for: not those that are refused.

        Nor those that were refused before a restart and are gone, unless the others are too few or `misfit` is "wait".
        """
        if few or self._config.rules.misfit == "wait":
            return [site for site in self.counts if site not in self.refused]
        return present

    def settle(self) -> None:
        """Greet new nodes, admit the sites that fit, and send the terms to members that do not hold them."""
        met = self._met
        met.columns = list(self.agreed.kinds() or ())
        met.meet(describe=False)
        strangers = [site for site in met.nodes if site not in self.counts and site not in self.refused]
        met.greet([met.nodes[site] for site in strangers if site not in met.told], describe=True)
        for site in strangers:
            if site in met.told:
                reason = misfit(self.agreed, site, met.told[site])
                if reason:
                    self._turn_away(site, reason)
        here = [site for site in met.nodes if site not in self.refused and (site in self.counts or site in met.told)]
        self._bind([site for site in here if not self._ready(site)])

    def dismiss(self, why: str, own: Mapping[str, str] | None = None, over: bool = False) -> None:
        """Tell each connected site why the run ends: its own reason alone, or `why`, which names no site.

        `own` are reasons beside those for which sites are left out. A run that is not `over` may be started again; why
        one is over is the same for all.
        """
        reasons = {} if over else {**(own or {}), **self.absences.reasons()}
        told = {node: why if over else reason for node, (_, reason) in self.absences.unanswered.items()}
        told |= {node: reasons.get(site, why) for node, site in self._met.met.items()}
        here = set(self._sites.present())
        asked = {node: Message(facts={"ended": told[node], "over": over}) for node in told if node in here}
        if asked:
            self._sites.ask("agree", asked, _CLOSING)

    def _attempt(self) -> tuple[Agreement | None, str]:
        """The agreement of the sites so far, or the problem that prevents one."""
        told = self._met.told
        if not told:
            return None, ""
        for site in told:  # what was odd among fewer sites may be usual among more
            self.refused.pop(site, None)
        try:
            found, wrong = agree(self._config, told)
        except NoneFits as error:
            self.refused.update(error.misfits)
            return None, str(error)
        except UserError as error:
            return None, str(error)
        self.refused.update(wrong)
        return found, ""

    def _missing(self) -> list[str]:
        return [site for site in self._config.active if site not in self._met.told and site not in self.refused]

    def _must_wait(self) -> bool:
        return self._config.rules.misfit == "wait" and bool(self.refused)

    def _stop_where_misfit(self) -> None:
        if self._must_wait():
            reasons = " ".join(self.refused.values())
            raise UserError(
                f"{reasons} The rule 'misfit' is \"wait\", and patience is over: fix the files, or set misfit to "
                '"go_on", and run again.'
            )

    def _wait(self, missing: Iterable[str], patience: Patience, others: int) -> None:
        """Pause before looking again; under misfit = "wait", sites whose file does not fit will be asked again.

        `others` is how many sites there are besides those that are missing.
        """
        names = [*missing, *(self.refused if self._must_wait() else ())]
        failed = {site: told for site, told in self.absences.unanswered.values() if site is not None}
        enough = others >= self._config.rules.min_sites and not self._must_wait() and bool(names)
        self._say("waiting", waiting_for(names, failed, patience, enough))
        if self._must_wait():
            self._met.ask_again(list(self.refused))
        time.sleep(self._pause)

    def _bind(self, sites: Iterable[str]) -> None:
        """Send the terms, and admit the sites that accept them."""
        asked = {self._met.nodes[site]: site for site in sorted(sites, key=self._config.sites.index)}
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
            node = self._met.nodes[site]
            self._met.unanswered("agreeing", node, site, "did not agree to the terms", answer)
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
            self._met.refuse("agreeing", site, error)
            return
        self.counts[site] = counts
        self._met.accepted(site, key)
        self._current.add(site)
        self._say("agreeing", f"The site {site!r} takes part with {counts.rows} training rows.")

    def _turn_away(self, site: str, reason: str) -> None:
        """Leave a site out, and send it the reason."""
        self.refused[site] = reason
        self._say("agreeing", f"{reason} It is left out.")
        if site in self._met.nodes:
            self._sites.ask("agree", {self._met.nodes[site]: Message(facts={"refused": reason})}, GREETING)
