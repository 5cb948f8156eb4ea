"""What Gaussian noise guarantees.

A mechanism whose result one client can move by at most mu standard deviations is as hard to see through as one draw
from N(0, 1) or N(mu, 1). Such mechanisms, even where each depends on the results before it, compose exactly:
mu = sqrt(sum of mu_k^2) (Dong, Roth and Su, 2022). The curve of (epsilon, delta) at mu is (Balle and Wang, 2018)

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)
"""

from __future__ import annotations

import math

_TAIL = -30.0  # below this, Phi is taken from its asymptotic series: erfc would underflow in the end
_STEPS = 200
_HUGE = 1e6  # above this mu, the two terms of delta are equal in floating point


def log_delta(mu: float, epsilon: float) -> float:
    """The logarithm of the smallest delta for this epsilon."""
    upper = _log_phi(mu / 2 - epsilon / mu)
    lower = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    gone = -math.expm1(min(0.0, lower - upper))
    return upper + math.log(gone) if gone > 0 else -math.inf


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for this delta, rounded up; infinite if nothing is protected."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    wanted = math.log(delta)
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * wanted)  # this much is always enough (Bun and Steinke, 2016)
    if mu > _HUGE:
        return high
    if log_delta(mu, 0.0) <= wanted:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if log_delta(mu, middle) > wanted else (low, middle)
    return high


def describe_guarantee(epsilon: float, delta: float) -> str:
    """A guarantee in words."""
    if not math.isfinite(epsilon):
        return "no differential privacy: some of what the run published has no noise"
    return f"differential privacy of whole clients with epsilon = {epsilon:.3g} at delta = {delta:g}"


def _log_phi(x: float) -> float:
    """The logarithm of the normal distribution function, also where the function itself is too small for a float."""
    if x > _TAIL:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    series = 1 - 1 / x**2 + 3 / x**4 - 15 / x**6
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)
