"""Fairness targets: the most accurate model whose gaps are within stated bounds, and how sure that is."""

from ffalm.targets.target import Bound, Target

__all__ = ["Bound", "Target"]
