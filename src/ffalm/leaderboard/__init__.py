"""The leaderboard: every method on every data set at the same fairness bounds, tuned and chosen by the same rule."""
