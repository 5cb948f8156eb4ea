"""User-level differential privacy: what one client holds hardly changes what a run gives out, and by how much.

A user is a whole client. Whoever leads the rounds sees every answer as it is; what leaves her (models, duals, weights,
history) went through a `Mechanism`, and an accountant says what that is worth.
"""

from __future__ import annotations

from ffalm.privacy.accountant import epsilon_of, worth
from ffalm.privacy.mechanism import BOOK, Mechanism
from ffalm.privacy.noise import KeyedNoise, Noise, SystemNoise
from ffalm.privacy.settings import Privacy

__all__ = ["BOOK", "KeyedNoise", "Mechanism", "Noise", "Privacy", "SystemNoise", "epsilon_of", "worth"]
