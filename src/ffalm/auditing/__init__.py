"""Fairness of predictions made anywhere: `ffalm.audit`, and its numbers from counts alone for federations."""
