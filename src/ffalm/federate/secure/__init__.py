"""Secure aggregation: the coordinator learns the sum of the sites' updates, and no single update.

The protocol is SecAgg+ (Bell, Bonawitz, Gascon, Lepoint and Raykova, 2020) for honest-but-curious parties. A site hides
its vector under pairwise masks that cancel in the sum, one with each neighbour, and under one mask of its own; the
secrets that remove masks are shared among the neighbours, so that sites may drop out at any moment.

    secure_settings  what is agreed             fixed_point  numbers as integers that cannot overflow when summed
    shamir           secret sharing             crypto       keys, sealed messages, masks
    neighbours       who shares masks with whom protocol     a site's three steps
    aggregator       the coordinator's side     payload      what is summed
    histogram_payload  score histograms in the last sum, with a fairness target
    secure_site      a site's answers           secure_clients, secure_rounds  questions to the sites; one round
"""
