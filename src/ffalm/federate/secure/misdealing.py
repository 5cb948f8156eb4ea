"""Proof that a site dealt shares that belong to no secret, which it alone can give.

Such a site is noticed only when the sum is revealed, and each other site helps to reveal one sum of a round. The sum
over the others is another one. It tells nothing that the dishonest site and the coordinator could not have known
together, who know what that site sent. So it is revealed to whoever shows that the site is dishonest, whatever the
coordinator says: the offer that the site signed, and shares of its seed that it announced, from which another seed
follows than the one that it announced. Honest sites sign no such offer.
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
            f"What the coordinator shows of {self.name!r} does not prove that it dealt wrong shares.",
        )


def belong(shares: dict[int, bytes], dealing: Dealing) -> bool:
    """Whether shares, of which there are enough, give the seed that their dealer announced."""
    if any(len(share) != SHARE_BYTES or holder < 0 for holder, share in shares.items()):
        return False
    try:
        return digest(join(shares)) == dealing.seed
    except PublicError:
        return False
