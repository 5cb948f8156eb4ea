"""Clients in other processes or machines: messages in plain values, independent of the transport."""
