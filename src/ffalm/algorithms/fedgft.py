"""FedGFT: a penalty on the gaps of the whole federation's rates (Wang et al., TMLR 2024).

With r_g a group's rate over the federation, the objective is L + penalty * sum over pairs of groups (r_g - r_h)^2; of
two groups, penalty * F^2 with F = r_0 - r_1. Its gradient is that of L + sum_g c_g r_g with

    c_g = 2 penalty sum_h (r_g - r_h)        at the rates of the model that was sent

and each client descends on its own rows' part of that sum (`rate_prices.py`). Rates are sums over clients, divided by
counts that are known at the start, so they need no more than secure sums:

    r_g = sum_i p_i (rows of g at i that were predicted favourable / n_i) / (n_g / N)

Where only some clients take part, n_g / N is still the federation's share: r_g is right on average over rounds, and in
a single round it also varies with the participants' share of g.

c_g is by hard predictions of the model sent in the round before; the gradient is that of probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ffalm.algorithms.contract import Measure, RoundReport, State, Task
from ffalm.algorithms.rate_prices import PricedRates
from ffalm.algorithms.registry import register
from ffalm.settings import setting


@register
@dataclass(frozen=True)
class FedGFT(PricedRates):
    """A quadratic penalty on one rate constraint, or several joined by commas; takes any number of groups.

    penalty=0 is FedAvg.
    """

    name = "fedgft"
    title = "FedGFT"
    paper = "Wang, Payani, Lee and Kompella, TMLR 2024 (arXiv 2305.09931)"
    limits = (
        "A penalty only trades the gap against the loss: no setting promises a bound. With partial participation the "
        "rates of a round vary with the participants' shares of the groups."
    )
    server_settings = ("constraint", "penalty")
    remedies = "a smaller penalty or a smaller lr"
    measure = Measure.RECEIVED
    step_norm = 1.0  # it holds rates and prices themselves, not a small move of them

    constraint: str = setting("dp", "Rates to be equal: dp, eo, odds, accuracy or loss; several with commas.")
    penalty: float = setting(0.5, "Coefficient of the squared gap.", least=0)

    @property
    def separable(self) -> bool:
        """Rates are sums over clients, divided by shares that are known at the start."""
        return True

    def start(self, task: Task, counts: Tensor) -> State:
        """No gap is known yet, so nothing has a price."""
        shares = self.shares(counts, task)
        none = torch.zeros_like(shares)
        return {"rates": none, "rate_shares": shares, "prices": self.prices(none, shares, task)}

    def dual_step(self, state: State, report: RoundReport) -> State:
        """The rates of the model that was sent, and the prices that follow."""
        assert report.tally is not None
        shares = state["rate_shares"]
        there = shares > 0
        of_client = self.hits(report.tally, report.task) / report.sizes.clamp(min=1)[..., None, None]
        mean = (report.shares()[..., None, None] * of_client).sum(-3)
        rates = torch.where(there, mean / torch.where(there, shares, 1.0), 0.0)
        return self._priced(rates, shares, there, report.task)

    def recounted(self, state: State, task: Task, counts: Tensor, new: Tensor) -> State:
        """Prices by the new shares; a group that had no rows has no rate yet."""
        known = state["rate_shares"] > 0
        return self._priced(state["rates"], self.shares(counts, task), known, task)

    def _priced(self, rates: Tensor, shares: Tensor, known: Tensor, task: Task) -> State:
        gaps = (known.sum(-1, keepdim=True) * rates - rates.sum(-1, keepdim=True)) * known
        return {"rates": rates, "rate_shares": shares, "prices": self.prices(2 * self.penalty * gaps, shares, task)}
