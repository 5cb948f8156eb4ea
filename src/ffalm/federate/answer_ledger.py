"""The questions that a site has answered in a run, so that it answers each once and helps to reveal one sum of each.

A coordinator that was stopped asks its last round again, word for word, and gets the same answer. A coordinator that
sends another model for the same round, or asks for the sum of a round over other sites, is refused: the difference of
two answers to nearly the same question reveals what neither should.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, uint8

from ffalm.errors import require_public
from ffalm.federate.terms import SiteTerms, first_run
from ffalm.studies.store import locked
from ffalm.system.files import read_json, write_private

MIN_GROUP = "min_group"
"""The number beside a question's tensors that a site's own site.toml may change."""

_NUMBERS = "clients"  # an entry of the file beside the purposes
_MOST_RANGES = 3  # choices of the ranges of a secure sum, for each question
_MOST_FLOORS = 3  # values of `min_group` for which a site describes its rows


class AnswerLedger:
    """The questions of one run that a site has answered, by purpose ("train 3", "score", "groups: train 3")."""

    def __init__(self, folder: Path, terms: SiteTerms) -> None:
        self._folder, self._terms = folder, terms
        first = first_run(terms.run)
        self._training = "" if first == terms.run else "groups: "  # the second training of a run shares its file
        run = hashlib.sha256((first or terms.run_key).encode()).hexdigest()[:16]
        self._file = folder / ".answered" / f"{run}.json"

    def question(
        self,
        purpose: str,
        tensors: Mapping[str, Mapping[str, Tensor]],
        most: tuple[str, int] | None = None,
        under: Mapping[str, int | float] | None = None,
    ) -> None:
        """Note a question before it is answered; raises `PublicError` if another was answered.

        `most` bounds how many purposes with the same prefix are answered in a run. `under` are numbers beside the
        tensors that shape the answer, such as the largest weight of a site in a sum: the difference of two sums in
        which only this number differs is the answer of the sites that it bounds.
        """
        if most is not None:
            with locked(self._folder, "answered"):
                known = self._noted().keys() - {self._training + purpose}
            others = sum(one.startswith(self._training + most[0]) for one in known)
            require_public(others < most[1], "This site has answered as many questions of this kind as a run may ask.")
        asked: dict[str, Any] = {f"under {name}": value for name, value in (under or {}).items()}
        asked["question"] = f"{self._terms.run_key} {digest(tensors)}"
        before = self._note(self._training + purpose, asked)
        answered, floor = f"This site has answered the question {purpose!r} of this run", f"under {MIN_GROUP}"
        require_public(
            before.keys() != {floor},  # which may be the site's own, so that nothing changed in federation.toml
            f"{answered} under {MIN_GROUP} = {before.get(floor)}, and is asked it again under {MIN_GROUP} = "
            f"{asked.get(floor)}: put {before.get(floor)} back under [rules] of federation.toml, or in this site's "
            "site.toml if it was changed there, until this question is answered.",
        )
        require_public(
            not before,
            f"{answered} for another model or other terms: put back what was changed in federation.toml, or move the "
            "coordinator's run folder away to start a new run.",
        )

    def answered(self, purpose: str, tensors: Mapping[str, Mapping[str, Tensor]]) -> bool:
        """Whether this site has answered exactly this question."""
        with locked(self._folder, "answered"):
            noted = self._noted().get(self._training + purpose, {})
        return noted.get("question") == f"{self._terms.run_key} {digest(tensors)}"

    def fewest(self, purpose: str, now: int) -> int:
        """How many sites share the noise of this answer: as many as when it was masked first, noted before it leaves.

        Raises `PublicError` if this sum may be over fewer sites. The others may have revealed the first sum without
        this site, so the noise must be the same every time.
        """
        own = self._training + purpose
        with locked(self._folder, "answered"):
            first = int(self._noted().get(own, {}).get("fewest", now))
        require_public(
            first <= now,
            f"This site has answered the question {purpose!r} of this run with its share of the noise of {first} "
            f"sites, and this sum may be of {now}: bring the sites back that were asked then.",
        )
        before = self._note(own, {"fewest": first})
        require_public(not before, "This site has answered this question with another share of noise.")
        return first

    def ranged(self, purpose: str, ranges: Sequence[float]) -> None:
        """Note the ranges of a secure sum before numbers are compared with them; raises `PublicError` if there were too
        many other ranges.

        A site names a number that leaves its range, so with many ranges a coordinator could find out each number.
        """
        with locked(self._folder, "answered"):
            noted = self._noted()
            known: list[list[float]] = noted.setdefault(self._training + purpose, {}).setdefault("ranges", [])
            if list(ranges) in known:
                return
            require_public(
                len(known) < _MOST_RANGES,
                f"This site was asked the question {purpose!r} of this run under {_MOST_RANGES} choices of [secure] in "
                "federation.toml, and another would reveal how large its numbers are: put one of them back, or move "
                "the coordinator's run folder away to start a new run.",
            )
            known.append(list(ranges))
            self._write(noted)

    def numbered(self, names: Mapping[int, str]) -> None:
        """Note the client numbers of other sites in this run; raises `PublicError` if one was another site's before.

        Otherwise two sums over the same numbers could be over different sites.
        """
        before = self._note(_NUMBERS, {str(client): name for client, name in names.items()})
        require_public(
            not before, "The coordinator lists other sites under the numbers that some had before in this run."
        )

    def summed(self, purpose: str, clients: Collection[int], dishonest: Mapping[int, str] | None = None) -> None:
        """Note the clients in a sum before it is revealed; raises `PublicError` if a sum over others was revealed.

        All sums for a blind rule are over the sites of the score histograms: their counts follow from one another.
        Clients that are proven to be `dishonest`, so that an earlier sum failed, may be left out of the next.
        """
        searched = bool(self._training) and not purpose.startswith("train ")
        own = "score" if searched else self._training + purpose
        with locked(self._folder, "answered"):
            noted = self._noted()
            known, names = noted.setdefault(own, {}), noted.get(_NUMBERS, {})
            before = set(known.get("summed", clients))
            proven = {client for client, name in (dishonest or {}).items() if names.get(str(client)) == name}
            require_public(
                before == set(clients) or (not searched and before - proven == set(clients) - proven),
                f"This site has helped to reveal the sum {purpose!r} of this run over other sites, and the two sums "
                "would reveal a single site's answer: bring the sites of the first sum back.",
            )
            known["summed"] = sorted(clients)
            self._write(noted)

    def _noted(self) -> dict[str, dict[str, Any]]:
        noted: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            noted = read_json(self._file)
        return noted

    def _note(self, purpose: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Note values of a purpose; if some were others before, note none and return what these were."""
        with locked(self._folder, "answered"):
            noted = self._noted()
            known = noted.setdefault(purpose, {})
            before = {what: known[what] for what, value in values.items() if known.setdefault(what, value) != value}
            if not before:
                self._write(noted)
            return before

    def _write(self, noted: Mapping[str, Any]) -> None:
        self._file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self._file, json.dumps(noted).encode())  # on disk before the answer leaves


def described(folder: Path, fewest: int) -> None:
    """Note how many rows a value must have to be named; raises `PublicError` at the fourth such number.

    A value that is named for 20 rows and not for 21 is held by exactly 20 rows, which must not leave the site.
    """
    file = folder / ".answered" / "described.json"
    with locked(folder, "answered"):
        known: list[int] = read_json(file) if file.exists() else []
        if fewest in known:
            return
        require_public(
            len(known) < _MOST_FLOORS,
            f"This site has described its rows for {_MOST_FLOORS} values of min_group, and another would reveal how "
            "many rows hold a value: its administrator may delete .answered/described.json in its folder.",
        )
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(file, json.dumps([*known, fewest]).encode())


def digest(tensors: Mapping[str, Mapping[str, Tensor]]) -> str:
    """A fingerprint of a message's records, which does not depend on their order."""
    found = hashlib.sha256()
    for record, entries in sorted(tensors.items()):
        for name, value in sorted(entries.items()):
            found.update(f"{record}/{name} {value.dtype} {tuple(value.shape)} ".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(uint8).numpy().tobytes())
    return found.hexdigest()
