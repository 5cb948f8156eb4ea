"""Inner products of model-sized vectors: all that some server steps need to know of single clients' vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def inner_products(parts: Iterable[Tensor], names: int) -> Tensor:
    """(name, client, name, client), in float64 and on the CPU.

    A part is one parameter of all vectors, (vector, number): those of the first name's clients, then of the second's.
    The products of whole vectors are the sums over parts, so that no whole vector is laid out twice.
    """
    matrices = [(part := values.double()) @ part.T for values in parts]
    total = sum(matrices[1:], matrices[0]).cpu()
    return total.view(names, len(total) // names, names, len(total) // names)


def spread(values: Tensor, axes: Sequence[int], clients: Sequence[int], count: int) -> Tensor:
    """Values of some clients, laid out on these axes over all clients; 0 for the others."""
    places = torch.tensor(clients)
    for axis in axes:
        shape = [count if own == axis else size for own, size in enumerate(values.shape)]
        values = values.new_zeros(shape).index_copy(axis, places, values)
    return values
