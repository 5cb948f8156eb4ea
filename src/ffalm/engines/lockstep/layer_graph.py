"""Reading an `nn.Module` of convolutions, normalisations and linear layers as a list of steps.

Layers with weights know about lanes. Everything else treats each row by itself, so it is called as it stands on the
rows of all lanes, one lane after the other. A ReLU behind a normalisation, and a sum between the two, become part of
it: each would read and write all the numbers once more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ffalm.engines.lockstep.layers import Convolution, Normalisation, Pooling
from ffalm.models.tracing import graph_of

#: Modules and functions without weights that treat every row of a batch by itself.
_ROW_MODULES = (nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Identity)
_RELUS: frozenset[Any] = frozenset({torch.relu, functional.relu})
_ROW_FUNCTIONS: frozenset[Any] = _RELUS | {
    torch.add, operator.add, functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d,
}  # fmt: skip
_IMAGE_AXES = ((-2, -1), (2, 3), (-1, -2), (3, 2))


@dataclass(frozen=True)
class Step:
    """One operation; `sources` are names of earlier results."""

    result: str
    sources: tuple[str, ...]
    layer: str = ""  # the module with the weights
    convolution: Convolution | None = None
    normalisation: Normalisation | None = None
    pooling: Pooling | None = None
    function: Callable[..., Tensor] | None = None  # of the sources
    unneeded: list[str] = field(default_factory=list)  # results that nothing after this step reads


class Unreadable(Exception):
    """A module is more than layers that lanes can share; the message says what, as the rest of a sentence."""


@dataclass(frozen=True)
class LayerGraph:
    """A module as steps; the images enter under the name `entry` and the logits leave as `exit`."""

    steps: list[Step]
    entry: str
    exit: str

    @property
    def first_layers(self) -> set[str]:
        """The convolutions that see the images themselves."""
        return {step.layer for step in self.steps if step.convolution and step.sources == (self.entry,)}


def read_layers(model: nn.Module) -> LayerGraph:
    """The module's steps, each with the results that nobody needs after it."""
    graph = _traced(model)
    entry = next(node.name for node in graph.nodes if node.op == "placeholder")
    exit = str(next(node for node in graph.nodes if node.op == "output").args[0])
    steps = _read(model, graph)
    _check_parameters(model, steps)
    needed = {exit}
    for step in reversed(steps):
        step.unneeded.extend(name for name in dict.fromkeys(step.sources) if name not in needed)
        needed.update(step.sources)
    return LayerGraph(steps, entry, exit)


def _check_parameters(model: nn.Module, steps: Sequence[Step]) -> None:
    layers = [step.layer for step in steps if step.layer]
    owned = [name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)]
    tied = len(owned) > len(list(model.parameters()))
    if tied or len(set(layers)) < len(layers) or set(owned) - set(layers):
        raise Unreadable("a parameter is used twice, or outside of layers")
    if any(not parameter.requires_grad for parameter in model.parameters()):
        raise Unreadable("some of its parameters are frozen")
    norms = {step.layer for step in steps if step.normalisation}
    if any(name.rpartition(".")[0] not in norms for name, _ in model.named_buffers()):
        raise Unreadable("it has buffers of its own")


def _traced(model: nn.Module) -> fx.Graph:
    """The module's graph, where it says all that the module does."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise Unreadable("it has hooks")
    was = model.training
    try:
        graphs = [graph_of(model.train(mode)) for mode in (False, True)]
    except Exception as error:
        # Tracing runs the author's own code, so anything may come out of it.
        raise Unreadable("its code cannot be traced") from error
    finally:
        model.train(was)
    entries = [node for node in graphs[0].nodes if node.op == "placeholder"]
    if str(graphs[0]) != str(graphs[1]) or len(entries) != 1:
        raise Unreadable("it is not one function of its images")
    return graphs[0]


def _read(model: nn.Module, graph: fx.Graph) -> list[Step]:
    """The graph's operations in an order in which each has its sources."""
    steps: list[Step] = []
    part_of_another: set[fx.Node] = set()
    for node in graph.nodes:
        found = _fused(model, node)
        if found is not None:
            part_of_another.update(found)
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or node in part_of_another:
            continue
        fused = _fused(model, node)
        norm = (fused or [node])[0]
        module = _module(model, norm)
        if isinstance(module, nn.BatchNorm2d):
            others = [other for between in (fused or [])[1:] for other in between.all_input_nodes if other is not norm]
            sources = (norm.args[0], *others)
            how = _normalisation(module, str(norm.target), fused is not None)
            steps.append(Step(node.name, _names(sources), str(norm.target), normalisation=how))
        else:
            steps.append(_plain_step(model, node))
    return steps


def _fused(model: nn.Module, node: fx.Node) -> list[fx.Node] | None:
    """For a ReLU behind a normalisation the nodes that it takes over: the normalisation, and a sum between the two."""
    rectifies = node.target in _RELUS if node.op == "call_function" else isinstance(_module(model, node), nn.ReLU)
    if not rectifies or len(node.all_input_nodes) != 1:
        return None
    before = node.all_input_nodes[0]
    if len(before.users) != 1:
        return None
    if isinstance(_module(model, before), nn.BatchNorm2d):
        return [before]
    adds = before.op == "call_function" and before.target in (operator.add, torch.add) and not before.kwargs
    if adds and len(before.all_input_nodes) == 2 and len(before.args) == 2:
        for one in before.all_input_nodes:
            if isinstance(_module(model, one), nn.BatchNorm2d) and len(one.users) == 1:
                return [one, before]
    return None


def _plain_step(model: nn.Module, node: fx.Node) -> Step:
    """A layer, or a function of rows."""
    name = str(node.target)
    sources = _names(node.all_input_nodes)
    module = _module(model, node)
    if isinstance(module, nn.Conv2d):
        return Step(node.name, sources, name, convolution=_convolution(module, name))
    if type(module) is nn.Linear:
        return Step(node.name, sources, name)
    pooling = _pooling(module)
    if pooling is not None:
        return Step(node.name, sources, pooling=pooling)
    flattens = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    if module is not None and (type(module) in _ROW_MODULES or flattens):
        return Step(node.name, sources, function=nn.ReLU() if type(module) is nn.ReLU else module)
    if type(module) is nn.Dropout and module.p == 0:
        return Step(node.name, sources, function=nn.Identity())
    if _by_rows(node):
        return Step(node.name, sources, function=_called(node))
    what = f"layer {name!r} ({type(module).__name__})" if module is not None else f"operation {node.name!r}"
    raise Unreadable(f"its {what} is none that lanes can share")


def _by_rows(node: fx.Node) -> bool:
    """Whether a function or method treats each row by itself, whatever it is given."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    first = (*node.args[1:2], *(value for key, value in node.kwargs.items() if key in ("dim", "start_dim")))
    if node.op == "call_function":
        flattens = node.target is torch.flatten and first == (1,) and len(node.args) <= 2
        return node.target in _ROW_FUNCTIONS or flattens
    averages = node.target == "mean" and len(first) == 1 and first[0] in _IMAGE_AXES
    return node.op == "call_method" and (
        node.target == "relu" or averages or (node.target == "flatten" and first == (1,))
    )


def _called(node: fx.Node) -> Callable[..., Tensor]:
    """The node as a function of its sources."""
    sources = list(node.all_input_nodes)
    settings = {key: value for key, value in node.kwargs.items() if key != "inplace"}
    target: Any = node.target if node.op == "call_function" else getattr(Tensor, str(node.target))

    def function(*given: Tensor) -> Tensor:
        found = dict(zip(sources, given, strict=True))
        arguments = [found[value] if isinstance(value, fx.Node) else value for value in node.args]
        made: Tensor = target(*arguments, **settings)
        return made

    return function


def _convolution(module: nn.Conv2d, name: str) -> Convolution:
    square = all(len(set(one)) == 1 for one in (module.kernel_size, module.stride, module.dilation))
    padding = module.padding
    plain = isinstance(padding, tuple) and len(set(padding)) == 1 and module.padding_mode == "zeros"
    if type(module) is not nn.Conv2d or not (square and plain) or module.groups > 1 or module.dilation[0] > 1:
        raise Unreadable(f"its convolution {name!r} has groups, a dilation, or is not the same in both directions")
    assert isinstance(padding, tuple)
    return Convolution(module.stride[0], padding[0])


def _normalisation(module: nn.BatchNorm2d, name: str, rectified: bool) -> Normalisation:
    if type(module) is not nn.BatchNorm2d or not (module.affine and module.track_running_stats) or not module.momentum:
        raise Unreadable(f"its normalisation {name!r} has no weights, or no running mean of fixed momentum")
    return Normalisation(module.eps, module.momentum, rectified)


def _pooling(module: nn.Module | None) -> Pooling | None:
    """A maximum over square windows; None for another one, which torch computes."""
    if type(module) is not nn.MaxPool2d or module.ceil_mode or module.return_indices:
        return None
    given = (module.kernel_size, module.stride, module.padding, module.dilation)
    sides = [set(one) if isinstance(one, tuple) else {one} for one in given]
    if any(len(one) > 1 for one in sides) or sides[3] != {1}:
        return None
    size, stride, padding = (one.pop() for one in sides[:3])
    return Pooling(size, stride, padding)


def _module(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _names(nodes: Sequence[Any]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)
