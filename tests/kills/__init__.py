"""Studies that are killed, stopped, moved, run out of disk or damaged at random instants, and resumed.

`python -m tests.kills --kills 1000 --seed 0` runs them at length and counts what came of each kind. A resumed study
must come to the same bytes as one that nobody disturbed; only where a file of its folder was damaged may it be refused.
"""
