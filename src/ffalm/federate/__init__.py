"""Real federations: sites that keep their rows, and a coordinator that leads them.

    coordinator/  agreement, rounds, validation of updates, run log, report
    site/         reading and encoding a site's own rows, answering the coordinator
    secure/       secure aggregation, both sides
    deploy/       folders, keys, certificates, Flower's processes, status

Files at this level are shared: both settings files, the terms, descriptions and disclosure rules. Only `deploy` knows
Flower: coordinator and sites exchange the plain values of `ffalm.engines.remote.message`, so all of it can run in one
process.
"""
