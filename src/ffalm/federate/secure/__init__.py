"""Secure aggregation: the coordinator learns the sum of what the sites answer, and no single answer.

The protocol is SecAgg+ (Bell, Bonawitz, Gascon, Lepoint and Raykova, 2020) for parties that keep to it but look at all
they see. A site hides its vector under masks that cancel in the sum, one with each neighbour, and under one of its own;
what is needed to take masks off again is shared out among the neighbours, so that sites may drop out at any moment.

    settings  what is agreed           fixed     numbers as whole numbers that cannot overflow when summed
    shamir    secrets in shares        crypto    keys, sealed messages, masks
    circle    who is whose neighbour   protocol  a site's three moves          gathering  the coordinator's side of them
    contents  what is summed           site      a site's answers              clients    questions to the sites
    rounds    a round of sums
"""
