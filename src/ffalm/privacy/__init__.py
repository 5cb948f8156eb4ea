"""User-level differential privacy: what one client holds hardly changes what a run gives out, and by how much.

A user is a whole client. Whoever leads the rounds sees every answer as it is; what leaves her (models, duals, weights,
history) went through a `Mechanism`, and an accountant says what that guarantees.
"""

from __future__ import annotations

from ffalm.privacy.accountant import describe_guarantee, epsilon_of
from ffalm.privacy.mechanism import LEDGER, Mechanism
from ffalm.privacy.noise import KeyedNoise, Noise, SystemNoise
from ffalm.run_settings import Privacy

__all__ = ["LEDGER", "KeyedNoise", "Mechanism", "Noise", "Privacy", "SystemNoise", "describe_guarantee", "epsilon_of"]
