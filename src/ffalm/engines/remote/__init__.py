"""Clients at the other end of a wire, whatever the wire is: messages in plain values, and the clients of a run."""
