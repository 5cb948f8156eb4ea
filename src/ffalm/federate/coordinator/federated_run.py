"""The coordinator: agree, lead the rounds, score, and store everything so that a kill at any moment loses little.

Started again on the same folder, it goes on from the last complete round with the stored agreement, duals and weights,
and its result equals that of a run that was never interrupted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch

from ffalm.algorithms import State
from ffalm.engines import Round, Snapshot
from ffalm.engines.common import built_model, frozen_parameters, trained_parameters
from ffalm.engines.remote.message import Fact, Sites
from ffalm.engines.server import ServerContext, rounds
from ffalm.errors import NOT_PUBLIC, UserError, require
from ffalm.fairness import Tally
from ffalm.federate.coordinator.blind_search import blind_rules
from ffalm.federate.coordinator.federation_answer import read_answer, site_facts, write_answer
from ffalm.federate.coordinator.federation_report import (
    notes_on,
    privacy_notes,
    secure_notes,
    write_record,
    write_report,
)
from ffalm.federate.coordinator.group_training import GroupTraining
from ffalm.federate.coordinator.histogram_sum import HistogramSum
from ffalm.federate.coordinator.introductions import Owner
from ffalm.federate.coordinator.members import Members
from ffalm.federate.coordinator.run_continuity import check_unchanged
from ffalm.federate.coordinator.run_log import RunLog
from ffalm.federate.coordinator.site_clients import Scores, SiteClients, SiteRequests
from ffalm.federate.disclosure import Scored
from ffalm.federate.federation_config import FederationConfig
from ffalm.federate.peer_versions import keep_versions
from ffalm.federate.secure.first_asked import FirstAsked
from ffalm.federate.secure.secure_clients import SecureClients
from ffalm.federate.secure.secure_rounds import secure_round
from ffalm.models import Pretrained
from ffalm.outcome import Outcome
from ffalm.privacy import Mechanism, SystemNoise
from ffalm.runs import Result
from ffalm.studies.store import RunFolder, locked, outcome_of
from ffalm.system import toml
from ffalm.system.files import read_json
from ffalm.targets.stored_rules import StoredRules

log = logging.getLogger("ffalm.federate")

PAUSE = 3.0  # seconds between two looks for sites that are missing

# What sites are told; their own reasons are added. None names another site.
_FAILED = "An error at the coordinator, whose administrator can see it in run.log."
_SEE_LOG = "coordinator/run.log has all of it. The rounds so far are kept: fix the cause and run again to go on."
_NOT_BEGUN = "The sites could not agree, or too few can take part; the coordinator names no cause at this site."
_NO_CAUSE = "The coordinator names no cause at this site."


def lead(sites: Sites, settings: dict[str, Fact]) -> None:
    """Lead the federation of a folder, `settings["folder"]`, to its end."""
    require("folder" in settings, "The run does not say where the federation folder is: set folder in its config.")
    folder = Path(str(settings["folder"]))
    config = FederationConfig.read(folder / "federation.toml")
    owner = owner_in(folder / "coordinator" / "registered.json")
    if "audit" in settings:
        from ffalm.federate.coordinator.federated_audit import audit_sites

        audit_sites(config, folder / str(settings["audit"]), sites, owner)
    else:
        coordinate(config, folder / "run", sites, owner)


def coordinate(
    config: FederationConfig,
    folder: Path,
    sites: Sites,
    owner: Owner = lambda node: None,
    pause: float = PAUSE,
) -> Outcome:
    """Train over the sites, from the beginning or from the last stored round; the outcome.

    If another process leads the same run, wait until it has ended: after a command `run` was killed just when it had
    started a run, the next one starts a second.
    """
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # it holds single sites' answers
    check_unchanged(config, folder)
    run.start(toml.dumps(config.settings()))
    with locked(folder, patient=True):
        outcome = run.outcome() or Coordinator(config, run, sites, owner, pause).run()
        write_record(folder)
        answer, obstacles = read_answer(folder)
        write_answer(folder, answer)
        write_report(folder, answer, obstacles)
        return outcome


class Coordinator:
    """One run while it is led."""

    done: ClassVar[str] = "All rounds are done."  # what sites are told at the end

    def __init__(self, config: FederationConfig, run: RunFolder, sites: Sites, owner: Owner, pause: float) -> None:
        self._config, self._run, self._sites, self._pause = config, run, sites, pause
        self._privacy = None if config.privacy is None else Mechanism(config.privacy, SystemNoise())
        self._log = RunLog(run, config.sites)
        self._members = Members(sites, config, owner, self._log.say, pause, self._log.run_id())
        self._trained: dict[str, tuple[str, ...]] = {}  # the model's trained parameters, once it is built
        self._asking: SiteRequests | None = None  # whoever asks the members, once there are any

    def run(self) -> Outcome:
        """Everything from the agreement to the outcome; if it must stop, status.json has the reason.

        Each connected site is told that the run has stopped, or is over.
        """
        try:
            outcome = self._led()
        except UserError as error:
            self._log.say("stopped", str(error))
            self._dismiss(_stopped(error, begun=self._asking is not None))
            raise
        except Exception as error:  # of ours, or of this machine, such as a full disk
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            with suppress(OSError):
                self._log.say("stopped", f"An unforeseen error ended the run ({what}); {_SEE_LOG}")
            self._dismiss(_FAILED)
            raise
        self._dismiss(outcome.diverged or self.done, over=True)
        return outcome

    def _led(self) -> Outcome:
        last = self._run.saved_rounds()[-1]
        self._log.go_back_to(last)
        self._begin()
        members, config = self._members, self._config
        kind = SiteClients if config.secure is None else SecureClients
        fresh = self._fresh(last)
        clients = kind(self._sites, members, config, fresh, self._trained, self._log.say, self._pause)
        self._asking = clients
        if isinstance(clients, SecureClients):
            clients.first = FirstAsked(self._run.path)
        now, diverged = self._train(clients, self._run.snapshot(last))
        return self._finish(clients, now, diverged)

    def _dismiss(self, why: str, over: bool = False) -> None:
        """Tell the sites why the run ends. That they cannot be told changes nothing."""
        missed = {} if self._asking is None else self._asking.missed
        judged = {} if self._asking is None else self._asking.quarantined
        own = dict.fromkeys(judged, f"{why} This site's last answer did not count; the coordinator knows why.")
        own |= {
            site: f"{why} This site's last answer is missing ({reason.rstrip('.')})." for site, reason in missed.items()
        }
        try:
            self._members.dismiss(why, own, over)
        except Exception as error:
            log.warning("The sites could not be told that the run has ended (%s).", type(error).__name__)

    def _begin(self) -> None:
        """Agree, or load the earlier agreement, and wait for the members."""
        members, run_log, model = self._members, self._log, self._config.model
        before = run_log.agreement()
        if before is None:
            if isinstance(model, Pretrained):
                model.check()
            members.agree_first()
        else:
            members.agreement = replace(before, sites=self._config.sites)
            if members.agreement != before:
                run_log.keep_agreement(members.agreement)
            kept, refused = run_log.counts(before.task), run_log.refused()
            members.counts = {site: kept[site] for site in kept if site not in self._config.removed}
            members.absences.earlier.update({site: refused[site] for site in members.counts if site in refused})
        members.gather()
        keep_versions(self._run.path, members.versions)
        self._config.algorithm.start(members.agreed.task, members.rows())  # raises if it cannot be used for this task
        if self._privacy is not None:
            Mechanism.check(self._config.algorithm)
        run_log.keep_members(members.agreed, members.counts, members.left_out)

    def _train(self, clients: SiteClients | SecureClients, start: Snapshot | None) -> tuple[Snapshot, str | None]:
        """The remaining rounds. After each one, sites that have joined or returned are admitted."""
        config, members, run_log = self._config, self._members, self._log
        now = start
        while now is None or now.round < config.training.rounds:
            done = self._round(clients, now)
            now = done.snapshot
            if done.diverged:
                return now, done.diverged
            self._run.save(now)
            before = len(members.counts)
            members.settle()
            if len(members.counts) > before:
                run_log.keep_members(members.agreed, members.counts, members.left_out)
        return now, None

    def _round(self, clients: SiteClients | SecureClients, now: Snapshot | None) -> Round:
        """One round and its record. Its answers bring the metrics of the model that it began with."""
        config, members, run_log = self._config, self._members, self._log
        task, known = members.agreed.task, [site for site in config.sites if site in members.counts]
        context = ServerContext(
            config.algorithm, config.training, task, members.rows(), config.seed, self._trained,
            self._recounted(now, known), self._privacy, holds_client_vectors=False,
        )  # fmt: skip
        clients.counted = run_log.counted()
        done = secure_round(context, clients) if isinstance(clients, SecureClients) else next(rounds(context, clients))
        answered = clients.scored.sites
        if self._privacy is None:
            run_log.complete(done.snapshot.round - 1, clients.scored, task)
        seen = {"answered": list(answered), "missed": clients.missed, "quarantined": clients.quarantined}
        run_log.add({**done.record, **seen, "known": known})
        run_log.write_sites(task, members.counts, members.left_out)
        run_log.say(
            "training", f"Round {done.snapshot.round} of {config.training.rounds}: {', '.join(answered)} took part."
        )
        return done

    def _recounted(self, now: Snapshot | None, known: Sequence[str]) -> Snapshot | None:
        """The snapshot; if other sites' rows were known in the last round, with its state fitted to those known now."""
        before = self._log.history[-1].get("known", known) if self._log.history else known
        if now is None or before == known:
            return now
        new = torch.tensor([site in known and site not in before for site in self._config.sites])
        rows, task = self._members.rows(), self._members.agreed.task
        return replace(now, state=now.state | self._config.algorithm.recounted(now.state, task, rows, new))

    def _fresh(self, done: int) -> dict[str, torch.Tensor]:
        """The model before round 1, from the federation's seed and initial weights.

        After round 1 only its form is used, so the file of initial weights need no longer exist.
        """
        terms = self._members.agreed.terms(self._config.sites[0], self._config)
        if done == 0:
            terms = replace(terms, model=self._config.model)
        model = built_model(terms.client_spec(torch.device("cpu")))
        self._trained = trained_parameters(model)
        if self._privacy is not None:
            self._privacy = replace(self._privacy, frozen=frozen_parameters(model))
        return {name: value.detach() for name, value in model.state_dict().items()}

    def _finish(self, clients: SiteClients | SecureClients, final: Snapshot, diverged: str | None) -> Outcome:
        """Score the final model at the sites and write the outcome."""
        config, run_log, members = self._config, self._log, self._members
        task = members.agreed.task
        nobody = Scored.of({}, task)
        scores: Scores = dict.fromkeys(("validation", "test"), nobody) if diverged else clients.score(final)
        scored = scores["test"].sites
        tally, own, state, notes = self._told(scores, final)
        tally = tally.excluding(task.excluded)
        notes = notes if config.secure is None else [*notes, *secure_notes()]
        missing = {**clients.missed, **clients.quarantined}
        histograms, rules, told = self._blind(clients.histograms, final, scored)
        answered = site_facts(config, task, histograms, missing, rules)
        run_log.write_sites(task, members.counts, members.left_out, own, answered)
        result = Result(
            test=tally.metrics(task.favourable) if scored else dict.fromkeys(tally.metrics(), math.nan),
            history=run_log.history,
            state_dict=final.model,
            state=state,
            tally=tally if scored else None,
            clients=[own.get(site, {}) for site in config.sites],
            seed=config.seed,
            notes=[
                *notes_on(scored, members.counts, tally, task, members.left_out, missing, run_log.history),
                *told,
                *notes,
            ],
            diverged=diverged,
            favourable=task.favourable,
            scores=histograms.parts,
            client_scores={} if config.scope == "federation" else histograms.by_site(list(members.counts)),
        )
        outcome = federation_outcome(config, result)
        self._run.finish(result, outcome)
        run_log.say("finished", diverged or f"All {final.round} rounds are done.")
        return outcome

    def _blind(
        self, histograms: HistogramSum, final: Snapshot, scored: Sequence[str]
    ) -> tuple[HistogramSum, StoredRules | None, list[str]]:
        """Train a model of the groups and search and store blind rules, if the answer may use one.

        Returns the histograms of the sites whose rows the rules rest on, the rules, and notes on the training.
        """
        config, members = self._config, self._members
        if not config.blind or "validation" not in histograms.parts:
            return histograms, None, []
        training = GroupTraining(config, self._run.path, self._sites, members, self._log.say, self._pause)
        self._asking = training.clients
        self._log.say("groups", f"The sites train a model of the groups, {config.training.rounds} rounds.")
        models = {"model": final.model, "groups": training.run()}
        self._log.say("groups", "The sites count rows for a blind rule.")
        rows = members.rows().sum(0)
        rules, histograms = blind_rules(config, members.agreed.task, training.clients, models, rows, histograms, scored)
        self._run.keep_blind_rules(rules)
        return histograms, rules, training.notes()

    def _told(self, scores: Scores, final: Snapshot) -> tuple[Tally, dict[str, dict[str, float]], State, list[str]]:
        """The Tally of the test rows, each site's own metrics, the server's last state, and notes on them.

        Under privacy noise is added to the sum of the scores, and single sites' metrics are not published.
        """
        task, privacy = self._members.agreed.task, self._privacy
        test = scores["test"]
        if privacy is None:
            self._log.complete(final.round, scores["validation"], task)
            own = {
                site: told.tally.excluding(task.excluded).metrics(task.favourable) for site, told in test.own.items()
            }
            return test.tally, own, final.state, []
        state, tally = final.state, test.tally
        if test.own:
            tally = privacy.scores([told.tally for told in test.own.values()], final.round)
        if test.sites:  # under `secure` the sites have added the noise
            state = privacy.scored(state)
        hidden = self._config.secure is not None
        return tally, {}, state, privacy_notes(privacy.epsilon(state), privacy.settings.delta, hidden)


def _stopped(error: UserError, begun: bool) -> str:
    """What every site may know of an error that stops a run: its public part, if it has one."""
    if error.public != NOT_PUBLIC:
        return error.public
    return _NO_CAUSE if begun else _NOT_BEGUN


def federation_outcome(config: FederationConfig, result: Result) -> Outcome:
    """The outcome of a federation's run in plain values; under privacy without intervals, which ignore its noise."""
    outcome = outcome_of(result, config.contender.label, config.algorithm.name, None)
    return outcome if config.privacy is None else replace(outcome, intervals={})


def owner_in(registered: Path) -> Owner:
    """Whose key a node has, from a file that is read each time: keys are added and replaced during a run."""

    def owner(node: int) -> str | None:
        try:
            return next((site for site, entry in read_json(registered).items() if entry["node"] == node), None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    return owner
