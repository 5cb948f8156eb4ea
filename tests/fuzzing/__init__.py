"""Fuzzers: random command lines, configurations, Python arguments, data files, messages and damaged folders, by a seed.

`python -m tests.fuzzing commands --cases 5000 --seed 1` runs one at length, `all` runs all of them. Each case is drawn
by a generator of its own number, so that one case can be repeated alone: `--first 17 --cases 1`.
`python -m tests.fuzzing.guided` is guided by coverage.
"""
