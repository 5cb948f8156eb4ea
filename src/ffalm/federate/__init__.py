"""Real federations: sites that keep their rows to themselves, and a coordinator that leads them.

Nothing here but `apps` knows Flower: the coordinator speaks to its sites through the plain values of
`ffalm.engines.flower.parcel`, so that all of it can be tried in one process.
"""
