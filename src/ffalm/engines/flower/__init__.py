"""Flower: the same rounds with every client in another process, on this machine or far away.

Only this package imports Flower. It turns Flower's messages into plain values (`Message`, `Failure`, `Sites`), so that
whatever leads a federation can be read, and tested, without it.
"""
