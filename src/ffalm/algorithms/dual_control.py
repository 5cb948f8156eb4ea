"""How the server moves a dual and a penalty by a measured gap, beyond plain gradient ascent.

With gap_t the measurement of round t and clip(x, c) = x within [-c, c], one dual at a time:

    integral <- (1 - decay) integral + clip(dual_lr_t gap_t, step_cap)
    dual     <- integral + proportional gap_t
    penalty  <- penalty * penalty_growth    where |gap_t| > sufficient_decrease |gap_(t-1)|

`decay` lets the dual forget, `step_cap` bounds one step, `proportional` makes it a PI controller (the integral part is
the dual of the augmented Lagrangian method), and the last line is the feasibility-driven penalty of that method: it
grows only while the constraint does not improve. Before round 1 the gap counts as 0, so round 1 lets the penalty grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffalm.algorithms.contract import State


@dataclass(frozen=True)
class DualControl:
    """The settings of the controller; with the defaults it is gradient ascent.

    Clients, or the server, only `record` the gap, which is linear in what they measured; the server then applies
    `moved` once. So a controlled algorithm stays separable.
    """

    step_cap: float | None = None
    decay: float = 0.0
    proportional: float = 0.0
    sufficient_decrease: float | None = None
    penalty_growth: float = 1.0

    @property
    def active(self) -> bool:
        """Whether it is more than gradient ascent."""
        return self != DualControl(penalty_growth=self.penalty_growth)

    def start(self, state: State) -> State:
        """The entries it needs, beside `dual` and `penalty`."""
        none = torch.zeros_like(state["dual"])
        return {**state, "integral": state["dual"], "gap": none, "last_gap": none, "dual_step_size": none}

    def record(self, state: State, gap: torch.Tensor, dual_lr: float) -> State:
        """The state with what was measured in this round; nothing else moves yet."""
        size = torch.full_like(state["dual"], dual_lr)
        return {**state, "gap": gap, "last_gap": state["gap"], "dual_step_size": size}

    def moved(self, state: State, bound: float | None) -> State:
        """The state after the recorded gap moved it, dual and integral within the bound."""
        gap, step = state["gap"], state["dual_step_size"] * state["gap"]
        if self.step_cap is not None:
            step = step.clamp(-self.step_cap, self.step_cap)
        integral = (1 - self.decay) * state["integral"] + step
        if bound is not None:  # else it would grow on while the dual cannot follow
            integral = integral.clamp(-bound, bound)
        state = {**state, "integral": integral, "dual": integral + self.proportional * gap}
        if self.sufficient_decrease is None:
            return state
        now, before = (_largest(state[name], state["penalty"]) for name in ("gap", "last_gap"))
        penalty, slow = state["penalty"], now > self.sufficient_decrease * before
        return {**state, "penalty": torch.where(slow, penalty * self.penalty_growth, penalty)}


def _largest(gap: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The largest absolute gap; of two groups there is only one, without an axis."""
    return gap.abs() if gap.ndim == like.ndim else gap.abs().amax(-1)
