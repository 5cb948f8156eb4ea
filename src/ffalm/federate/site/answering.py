"""A site's answers. Its rows stay at the site; names, counts, sums and models leave it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import ffalm
from ffalm.data.types import Examples, Task
from ffalm.engines.common import built_model
from ffalm.engines.jobs import Model
from ffalm.engines.loop import Learner
from ffalm.engines.remote.message import Fact, Kind, Message, printable
from ffalm.engines.server import ClientUpdate
from ffalm.errors import PublicError, UserError, require_public
from ffalm.fairness import ScoreHistogram
from ffalm.federate.answer_ledger import MIN_GROUP, AnswerLedger, described
from ffalm.federate.disclosure import Disclosed, fewest_rows, withheld
from ffalm.federate.federation_config import SiteConfig
from ffalm.federate.histogram_bytes import packed_histograms
from ffalm.federate.keys import NodeSigner
from ffalm.federate.peer_versions import keep_versions
from ffalm.federate.run_notice import keep_notice
from ffalm.federate.secure.secure_site import (
    SecretStore,
    SecureSite,
    answered_counts,
    answered_round,
    answered_scores,
    largest_weight,
    respond,
    told_reach,
)
from ffalm.federate.site.blind_counts import CountQuestion, read_shares, told_groups
from ffalm.federate.site.cache import Parts, SiteCache, rows_key
from ffalm.federate.site.questions import check_model, read_greeting, read_round
from ffalm.federate.site.update_disclosure import compared, disclosed_update, stepping
from ffalm.federate.terms import GROUPS, SiteTerms
from ffalm.simulation import placed
from ffalm.studies.checksums import with_checksum
from ffalm.system.files import write_private
from ffalm.system.hardware import deterministic, threads_for
from ffalm.system.hardware import device as device_of
from ffalm.targets.predicted_rows import cells_of
from ffalm.targets.site_answers import own_thresholds
from ffalm.targets.target import Target

log = logging.getLogger("ffalm.federate")

THRESHOLDS = "thresholds.json"
"""The site's own thresholds, which can replace `repair.json` in its copy of the model's folder."""
_NO_HISTOGRAMS = "Its site.toml says to send no score histograms"


def answer(kind: Kind, asked: Message, node: dict[str, Fact]) -> Message:
    """The answer of the site whose folder is `node["site"]`. An error raised here is public."""
    require_public("site" in node, "This node does not name its site's folder: start it with `ffalm federate site`.")
    try:
        site = LocalSite(Path(str(node["site"])))
        answers = {"hello": site.hello, "agree": site.agree, "secure": site.secret, "train": site.train}
        return answers.get(kind, site.score)(asked)
    except UserError as error:
        log.warning("This site could not answer: %s", error)
        raise PublicError(error.public) from error


class LocalSite:
    """One site: its folder with `site.toml`, and its files from earlier questions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = SiteConfig.read(folder / "site.toml")
        self._cache = SiteCache(folder)

    def hello(self, asked: Message) -> Message:
        """The site's name, the key of the terms it holds and, if asked for, a description of its data.

        The first description has names and kinds of columns; statistics are only for the columns that a question lists.
        """
        facts: dict[str, Fact] = {"name": self._config.name, "terms": self._key(), "version": ffalm.__version__}
        keep_versions(self._folder, {"coordinator": str(asked.facts.get("version", "unknown"))})
        if asked.facts.get("describe"):
            try:
                from ffalm.federate.site.rows import read_rows

                shared, columns, min_group = read_greeting(asked)
                rows = read_rows(self._config, shared, self._folder)
                if columns is None:
                    for problem in rows.problems():
                        log.warning("The federation cannot use a column: %s", problem)
                    for note in rows.notes():
                        log.warning("%s", note)
                fewest = fewest_rows(self._min_group(min_group))
                described(self._folder, fewest)
                about = shared.label, shared.group, fewest
                log.warning("This site describes its rows: label %s, group %s, values of at least %d rows.", *about)
                facts["description"] = rows.description(columns, fewest).to_json()
            except UserError as error:
                facts["misfit"] = self._misfit(error)
        return Message(facts=facts)

    def agree(self, asked: Message) -> Message:
        """Accept the federation's terms, encode the rows by them, and report their counts by label and group.

        Or note why the federation goes on without this site, or why the run has ended. Small cells are withheld, the
        total number of training rows is not. If this site cannot accept the terms, the answer has the reason.
        """
        facts: dict[str, Fact] = {"name": self._config.name}
        if "refused" in asked.facts:
            self._notice(f"The federation goes on without this site: {printable(str(asked.facts['refused']))}")
            return Message(facts=facts)
        if "ended" in asked.facts:
            self._end(printable(str(asked.facts["ended"])), over=bool(asked.facts.get("over")))
            return Message(facts=facts)
        try:
            terms = self._acceptable(SiteTerms.from_text(str(asked.facts.get("terms", ""))))
            parts = self._rows(terms)
            if self._run() != terms.run:
                SecretStore(self._folder).end()  # secrets of a run whose end this site missed
            self._cache.keep_terms(terms, self._min_group(terms.min_group))
            self._notice(f"This site takes part in the run {terms.run!r} of {terms.task.name!r}.")
            return Message({"counts": _counts(parts, terms.task, self._min_group(terms.min_group))}, facts)
        except UserError as error:
            return Message(facts={**facts, "misfit": self._misfit(error)})

    def _end(self, why: str, over: bool) -> None:
        """Note that a run has stopped, or is over for good; then its secrets of secure sums are of no more use."""
        if over:
            SecretStore(self._folder).end()
            self._notice(f"The run is over: {why} This site may be stopped, or left running for the next run.")
        else:
            self._notice(
                f"The coordinator has stopped the run: {why} It may be started again: leave this site running."
            )

    def _notice(self, sentence: str) -> None:
        """Log what happens to this site in a run, and keep it for `ffalm federate status`."""
        log.warning("%s", sentence)
        keep_notice(self._folder, sentence)

    def train(self, asked: Message) -> Message:
        """Score the received model on the validation rows, then train it; the answer has both results."""
        agreed = self._agreed(asked)
        terms = agreed.of_groups if _of_groups(asked) else agreed
        parts, learner, threads = self._ready(terms, agreed)
        counts, fewest = parts["train"].counts(terms.task), self._min_group(terms.min_group)
        sent, counted = read_round(asked, terms, learner.fresh(), counts)
        under = {"counted": counted} if terms.contender.algorithm.client_vectors else {}
        if terms.secure is not None:
            under |= {"largest": largest_weight(asked), **self._floor(agreed)}
        AnswerLedger(self._folder, terms).question(f"train {sent.round + 1}", asked.tensors, under=under)
        vectors = self._cache.client_vectors(terms, counted)
        if counted and terms.contender.algorithm.client_vectors and not vectors:
            log.warning("This site's own vectors of round %d are gone: it trains as in its first round.", counted)

        def worked() -> tuple[Disclosed, ClientUpdate]:
            with deterministic(threads):
                scores = Disclosed.of(learner.score(sent.model, parts["validation"]), fewest)
                update = learner.learn(terms.client, compared(parts["train"], terms, fewest), sent, vectors)
            self._cache.keep_client_vectors(terms, sent.round + 1, counted, update.own)
            return scores, stepping(update, counts, terms, fewest)

        if terms.secure is not None:
            return answered_round(asked, self._party(terms, agreed), sent, len(parts["train"]), worked)
        scores, update = worked()
        message = disclosed_update(update, sent, counts, terms, fewest)
        return Message(
            {**message.tensors, "validation": scores.record()}, {**message.facts, "rows": len(parts["train"])}
        )

    def score(self, asked: Message) -> Message:
        """Score the final model on the held-out rows and, with a target, on the training rows.

        The test rows are used only here and for blind rules. Of training rows only the histogram is sent.
        """
        terms = self._agreed(asked)
        if _of_groups(asked):
            return self._counted(asked, terms)
        parts, learner, threads = self._ready(terms, terms)
        model = asked.tensors.get("model", {})
        check_model(model, learner.fresh())
        under = {"reach": told_reach(asked), **self._floor(terms)} if terms.secure is not None else {}
        AnswerLedger(self._folder, terms).question("score", asked.tensors, under=under)

        def worked() -> dict[str, Disclosed]:
            histograms = terms.target is not None and self._config.histograms
            names = ("train", "validation", "test") if histograms else ("validation", "test")
            with deterministic(threads):
                told = {name: self._scored(learner, model, name, parts[name], terms, histograms) for name in names}
            self._fit_thresholds(told["validation"].histogram, terms)
            return told

        if terms.secure is not None:
            return answered_scores(asked, self._party(terms, terms), worked)
        told = worked()
        counted = {name: one.histogram for name, one in told.items() if one.histogram is not None}
        scores = {"scores": {"histograms": packed_histograms(counted)}} if counted else {}
        return Message({name: one.record() for name, one in told.items() if name != "train"} | scores)

    def _fit_thresholds(self, held_out: ScoreHistogram | None, terms: SiteTerms) -> None:
        """Fit this site's own thresholds, if the terms ask for them; they stay in its folder."""
        if terms.repair is None or terms.target is None or held_out is None:
            return
        own = own_thresholds(held_out, Target.parse(terms.target), terms.repair, terms.confidence)
        file = self._folder / THRESHOLDS
        if own is None:
            file.unlink(missing_ok=True)
            log.warning("This site has too few held-out rows for thresholds of its own: use the federation's.")
        else:
            write_private(file, with_checksum(own.to_plain(terms.task.group_names)).encode())
            log.warning("This site's own thresholds within %s are in %s.", terms.target, THRESHOLDS)

    def _counted(self, asked: Message, agreed: SiteTerms) -> Message:
        """Counts for a blind rule: see `blind_counts`."""
        require_public(self._config.histograms, f"{_NO_HISTOGRAMS}: it counts nothing for a blind rule either.")
        fewest, terms = self._min_group(agreed.min_group), agreed.of_groups
        parts, ledger = self._rows(agreed), AnswerLedger(self._folder, terms)
        key = f"{terms.run_key}-{rows_key(self._config, agreed, self._folder)}"
        if asked.facts.get("stage") == "predict":
            scored = {"model": asked.tensors.get("model", {})}
            require_public(
                AnswerLedger(self._folder, agreed).answered("score", scored),
                "A blind rule is for the final model of the run, whose scores this site has sent; this is another.",
            )
            outputs = self._predicted(asked, agreed)
            ledger.question("predict", asked.tensors, under=self._floor(agreed))
            self._cache.keep_outputs(key, outputs)
            return self._told("predict", asked, agreed, lambda: told_groups(outputs, parts, agreed, fewest))
        kept = self._cache.outputs(key)
        if kept is None:
            raise PublicError("This site no longer has the two models' outputs for a blind rule: run again.")
        shares = kept["shares"]
        question = CountQuestion.read(asked, agreed, shares)
        purpose = question.noted(ledger, agreed, shares, self._floor(agreed))
        return self._told(purpose, asked, agreed, lambda: question.answer(kept, parts, agreed, fewest))

    def _predicted(self, asked: Message, agreed: SiteTerms) -> Model:
        """The two models' outputs on the held-out and test rows, with the shares in the question."""
        outputs = {"shares": read_shares(asked, agreed)}
        for record, terms in (("model", agreed), ("groups", agreed.of_groups)):
            parts, learner, threads = self._ready(terms, agreed)
            model = asked.tensors.get(record, {})
            check_model(model, learner.fresh())
            with deterministic(threads):
                for part in ("validation", "test"):
                    logits = learner.logits(model, parts[part])
                    name, value = (
                        ("logits", logits) if terms is agreed else ("cells", cells_of(logits, agreed.task.groups))
                    )
                    outputs[f"{part}.{name}"] = value
        return outputs

    def _told(self, purpose: str, asked: Message, agreed: SiteTerms, counted: Callable[[], Tensor]) -> Message:
        """The answer with counts for a blind rule: masked in a secure sum, or plain."""
        if agreed.secure is not None:
            return answered_counts(asked, purpose, self._party(agreed.of_groups, agreed), counted)
        return Message({"counts": {"rows": counted()}})

    def _scored(
        self, learner: Learner, model: Model, part: str, rows: Examples, terms: SiteTerms, histogram: bool
    ) -> Disclosed:
        """A model's scores on the rows of a part, without small cells."""
        counted = learner.histogram(model, rows) if histogram else None
        fewest = self._min_group(terms.min_group)
        return Disclosed.of(learner.score(model, rows), fewest, counted, total_known=part == "train")

    def secret(self, asked: Message) -> Message:
        """A step of secure aggregation that needs no rows."""
        agreed = self._agreed(asked)
        terms = agreed.of_groups if _of_groups(asked) else agreed
        require_public(terms.secure is not None, "This federation did not agree on secure sums.")
        return respond(asked, self._party(terms, agreed))

    def _party(self, terms: SiteTerms, agreed: SiteTerms) -> SecureSite:
        signer = NodeSigner(self._folder, self._config.name)
        return SecureSite(self._folder, terms, signer, self._config.min_sites, agreed.common_key)

    def _misfit(self, error: UserError) -> str:
        """Log why this site cannot take part; the public part of the reason."""
        log.warning("This site cannot take part: %s", error)
        return error.public

    def _min_group(self, asked: int) -> int:
        """The larger of the federation's rule and the site's own."""
        return max(asked, self._config.min_group)

    def _floor(self, terms: SiteTerms) -> dict[str, int]:
        """The fewest rows of a cell that is sent, which must be the same in all answers to one question."""
        return {MIN_GROUP: self._min_group(terms.min_group)}

    def _key(self) -> str:
        """The key of the terms that this site holds; empty if it holds none that it can read, or if its `min_group` has
        changed since it reported its rows."""
        terms = self._held()
        return "" if terms is None or self._other_min_group(terms) else terms.key

    def _other_min_group(self, terms: SiteTerms) -> str:
        """The `min_group` under which this site reported its rows, if it has changed since; otherwise empty."""
        before = self._cache.told_under()
        return "" if before in (None, str(self._min_group(terms.min_group))) else str(before)

    def _run(self) -> str | None:
        """The run of these terms."""
        terms = self._held()
        return None if terms is None else terms.run

    def _held(self) -> SiteTerms | None:
        try:
            return self._cache.terms()
        except UserError:
            return None

    def _agreed(self, asked: Message) -> SiteTerms:
        terms, who = self._cache.terms(), f"The site {self._config.name!r}"
        if terms is None or terms.key != asked.facts.get("terms"):
            raise PublicError(f"{who} does not have these terms yet: it must agree first.")
        before, now = self._other_min_group(terms), self._min_group(terms.min_group)
        told = f"{who} reported its rows under min_group = {before}, and min_group is {now} now: it must agree again."
        require_public(not before, told)
        require_public(terms.blind or not _of_groups(asked), "This federation did not agree on a model of the groups.")
        return self._acceptable(terms)

    def _acceptable(self, terms: SiteTerms) -> SiteTerms:
        """The terms, if they meet the requirements in site.toml, which may have changed since the site agreed."""
        require_public(
            terms.secure is not None or not self._config.secure,
            "Its site.toml says to answer in secure sums only, and this federation's rule 'secure' is off.",
        )
        require_public(
            terms.secure is None or terms.target is None or self._config.histograms,
            f"{_NO_HISTOGRAMS}, which a secure sum needs of every site: take 'target' out of federation.toml.",
        )
        require_public(
            terms.secure is None or terms.secure.neighbours + 1 >= self._config.min_sites,
            f"Its site.toml says to take part in sums of at least {self._config.min_sites} sites, and it can only "
            "count its neighbours and itself: set neighbours in [secure] of federation.toml to "
            f"{self._config.min_sites // 2 * 2} or more.",
        )
        return terms

    def _ready(self, terms: SiteTerms, agreed: SiteTerms) -> tuple[Parts, Learner, int]:
        """The rows, the learner and its threads under these terms, which may be those of the model of the groups."""
        device = device_of(placed(self._config.device, terms.model_factory))
        spec = terms.client_spec(device)
        parts = {name: rows.to(device) for name, rows in self._rows(agreed).items()}
        if terms is not agreed:
            parts = {name: rows.with_group_labels(agreed.task) for name, rows in parts.items()}
        return parts, Learner(spec), threads_for(built_model(spec))

    def _rows(self, terms: SiteTerms) -> Parts:
        """The rows under the agreed encoding, from the cache or from the site's file."""
        key = rows_key(self._config, terms, self._folder)
        parts = self._cache.rows(key)
        if parts is None:
            from ffalm.federate.site.rows import read_rows

            parts = read_rows(self._config, terms.data, self._folder).encoded(terms.task, terms.encoding)
            self._cache.keep(key, parts)
        return parts


def _of_groups(asked: Message) -> bool:
    """Whether a question is about the model of the groups, or the blind rule that it serves."""
    return asked.facts.get("of") == GROUPS


def _counts(parts: Parts, task: Task, min_group: int) -> dict[str, Tensor]:
    """Rows per (label, group) of each part, which cells are withheld, and the number of training rows."""
    counts = {"rows": torch.tensor(len(parts["train"]))}
    for name, rows in parts.items():
        told = rows.counts(task)
        small = withheld(told, min_group, total_known=name == "train")
        counts |= {name: told.masked_fill(small, 0), f"{name}.withheld": small}
    return counts
