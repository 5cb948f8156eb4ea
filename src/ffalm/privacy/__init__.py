"""User-level differential privacy: a bound on how much one client's rows can change what a run publishes.

A user is a whole client. The server sees every answer as it is; all that it publishes (models, duals, weights, history)
has gone through a `Mechanism`, and an accountant computes what that guarantees.
"""

from __future__ import annotations

from ffalm.privacy.accountant import describe_guarantee, epsilon_of
from ffalm.privacy.mechanism import LEDGER, Mechanism
from ffalm.privacy.noise import KeyedNoise, Noise, SystemNoise
from ffalm.run_settings import Privacy

__all__ = ["LEDGER", "KeyedNoise", "Mechanism", "Noise", "Privacy", "SystemNoise", "describe_guarantee", "epsilon_of"]
