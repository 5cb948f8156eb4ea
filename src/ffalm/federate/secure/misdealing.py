"""Proof that a site dealt shares that belong to no secret; only the site itself makes such a proof possible.

The false shares are noticed only when the sum is revealed. The others must then reveal a second sum, without that site,
although a site otherwise helps to reveal only one sum of a round. The second sum shows the coordinator nothing that it
could not have known together with the dishonest site. So sites reveal it if they are shown a proof: the offer that
the dishonest site signed, and shares of its seed, as announced in the offer, that do not give the announced seed. An
honest site signs no such offer, so no coordinator can prove this of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ffalm.errors import PublicError, require_public
from ffalm.federate.keys import Signer
from ffalm.federate.secure.crypto import digest
from ffalm.federate.secure.protocol import AsText, Dealing, offer_statement
from ffalm.federate.secure.shamir import SHARE_BYTES, join


@dataclass(frozen=True)
class Misdealing(AsText):
    """An offer of the site `name`, and enough shares of its seed."""

    what: ClassVar[str] = "proof of wrong shares"

    run: str
    purpose: str
    attempt: str
    client: int
    name: str
    mask_key: str
    min_sites: int
    dealing: Dealing
    signature: str
    shares: dict[int, bytes]  # of the seed, by holder

    def check(self, run: str, purpose: str, signer: Signer) -> None:
        """Raise `PublicError` unless this proves that the site was dishonest in an attempt at this sum."""
        dealing, shares = self.dealing, self.shares
        statement = offer_statement(self, self.client, self.mask_key, self.min_sites, dealing.fingerprint)
        signer.check(self.name, statement, self.signature)
        announced = all(
            holder in dealing.digests and digest(share) == dealing.digests[holder][0]
            for holder, share in shares.items()
        )
        require_public(
            (self.run, self.purpose) == (run, purpose)
            and announced
            and len(shares) >= dealing.threshold
            and not belong(shares, dealing),
            f"The coordinator's proof that {self.name!r} dealt wrong shares is not valid.",
        )


def belong(shares: dict[int, bytes], dealing: Dealing) -> bool:
    """Whether shares give the seed that their dealer announced; there must be as many as are needed."""
    if any(len(share) != SHARE_BYTES or holder < 0 for holder, share in shares.items()):
        return False
    try:
        return digest(join(shares)) == dealing.seed
    except PublicError:
        return False
