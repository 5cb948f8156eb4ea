"""The paper's experiments repeated: its tables and figure next to ours, and the effect of each choice it leaves open.

paper.py                    what the paper says: settings and results
choices.py                  what it leaves open, by name, with the answers that can be given
request.py                  the requested experiments, as studies
studies.py                  those studies carried out, each run once
experiments.py              table-2, table-3, figure-2, sensitivity and frontier, made and written
paper_comparison.py, ...    the tables of each
"""
