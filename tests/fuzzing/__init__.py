"""Fuzzers: random command lines, configurations, Python arguments and damaged run folders, from a seed.

`python -m tests.fuzzing commands --cases 5000 --seed 1` runs one at length and counts what came of it. Each case is
drawn by a generator of its own number, so that one case can be repeated alone: `--only 17`.
"""
