"""Reading an `nn.Module` of linear layers and elementwise functions, so that many copies of it run as one.

Such a module is a short list of operations. With the copies' weights stacked on a leading axis a linear layer is one
batched product and everything else applies as it stands, which is several times faster than mapping the module.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from ffalm.models.tracing import graph_of

#: Modules without weights that act on each value alone; called as they are on stacked values.
_ELEMENTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Hardtanh, nn.Hardsigmoid,
    nn.Hardswish, nn.Threshold, nn.Identity,
)  # fmt: skip
_DROPOUTS = (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout)

_ELEMENTWISE_FUNCTIONS: frozenset[Any] = frozenset({
    torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.abs, torch.sin, torch.cos, torch.square, torch.neg,
    torch.add, torch.sub, torch.mul, operator.add, operator.sub, operator.mul, operator.neg, operator.truediv,
    functional.relu, functional.relu6, functional.leaky_relu, functional.elu, functional.selu, functional.celu,
    functional.gelu, functional.silu, functional.mish, functional.tanh, functional.sigmoid, functional.logsigmoid,
    functional.softplus, functional.softsign, functional.hardtanh, functional.hardsigmoid, functional.hardswish,
})  # fmt: skip
_ELEMENTWISE_METHODS = frozenset({"relu", "tanh", "sigmoid", "exp", "abs", "square", "neg", "add", "sub", "mul"})

_RELUS = (torch.relu, functional.relu, Tensor.relu)


@dataclass(frozen=True)
class Operation:
    """One step of a network: a linear layer where `linear` names it, else `function` of earlier results."""

    result: str
    arguments: tuple[Any, ...]  # results of earlier steps are named by `Result`
    settings: dict[str, Any] = field(default_factory=dict)
    linear: str | None = None
    rectified: bool = False  # a linear layer whose result goes through a ReLU and nowhere else
    function: Callable[..., Tensor] | None = None

    @property
    def source(self) -> str:
        """The result that a linear layer is applied to."""
        value = self.arguments[0]
        assert isinstance(value, Result)
        return value.name


@dataclass(frozen=True)
class Result:
    """A reference to the result of an earlier operation."""

    name: str


@dataclass(frozen=True)
class Network:
    """A module as a list of operations; the rows enter under the name `entry` and the logits leave as `exit`."""

    operations: tuple[Operation, ...]
    entry: str
    exit: str

    def entered_by(self) -> str | None:
        """The linear layer that alone sees the features, None if something else sees them too."""
        users = [step for step in self.operations if Result(self.entry) in step.arguments]
        return users[0].linear if len(users) == 1 else None


_known: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], Network | None]] = WeakKeyDictionary()


def read_network(model: nn.Module, shape: Sequence[int]) -> Network | None:
    """The module as a network on features of this shape, None if it is more than layers and functions.

    A module is read once: tracing takes longer than a round of a small study, and several places need it.
    """
    found, key = _known.setdefault(model, {}), tuple(shape)
    if key not in found:
        found[key] = _network(model, key)
    return found[key]


def _network(model: nn.Module, shape: tuple[int, ...]) -> Network | None:
    graph = _traced(model)
    if graph is None:
        return None
    entry, exit, steps = "", "", []
    same: dict[str, str] = {}  # flattening is done once, when the rows are laid out
    for node in graph.nodes:
        raw = len(shape) > 1 and any(value.op == "placeholder" for value in node.all_input_nodes)
        if node.op == "placeholder":
            if entry:
                return None
            entry = node.name
        elif _flattens(model, node):
            source = node.args[0]
            same[node.name] = same.get(source.name, source.name)
        elif node.op == "output" and isinstance(node.args[0], fx.Node):
            exit = same.get(node.args[0].name, node.args[0].name)
        else:
            step = None if raw else _operation(model, node, same)
            if step is None:
                return None
            steps.append(step)
    layers = [step.linear for step in steps if step.linear is not None]
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    named = {f"{name}.{part}" for name in layers for part in ("weight", "bias")}
    once = len(set(layers)) == len(layers) and len(owned) == len(list(model.parameters()))
    usable = layers and exit not in ("", entry) and once and owned <= named
    return Network(tuple(_joined(steps, exit)), entry, exit) if usable else None


def _joined(steps: list[Operation], exit: str) -> list[Operation]:
    """The operations with each ReLU made part of the linear layer before it, if nothing else sees that layer."""
    joined: list[Operation] = []
    for step in steps:
        layer = joined[-1] if joined else None
        users = [] if layer is None else [other for other in steps if Result(layer.result) in other.arguments]
        rectifies = step.function in _RELUS and len(step.arguments) == 1
        if rectifies and layer is not None and layer.linear and users == [step] and layer.result != exit:
            joined[-1] = replace(layer, result=step.result, rectified=True)
        else:
            joined.append(step)
    return joined


def _traced(model: nn.Module) -> fx.Graph | None:
    """The module's graph, None if there is none or if a graph would not say all that the module does."""
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    frozen = any(not parameter.requires_grad for parameter in model.parameters())
    if hooked or frozen or any(True for _ in model.buffers()):
        return None
    was = model.training
    try:
        graphs = [graph_of(model.train(mode)) for mode in (False, True)]
    except Exception:
        # Tracing runs the author's own code, so anything may come out of it; the module is then mapped as it stands.
        return None
    finally:
        model.train(was)
    return graphs[0] if str(graphs[0]) == str(graphs[1]) else None


def _operation(model: nn.Module, node: fx.Node, same: dict[str, str]) -> Operation | None:
    """A node as an operation on stacked values, None if it is not one."""
    arguments = tuple(
        Result(same.get(value.name, value.name)) if isinstance(value, fx.Node) else value for value in node.args
    )
    plain = all(isinstance(value, Result | int | float | bool | str | None) for value in arguments) and not any(
        isinstance(value, fx.Node) for value in node.kwargs.values()
    )
    if not plain or not arguments:
        return None
    settings = dict(node.kwargs)
    settings.pop("inplace", None)
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if type(module) is nn.Linear:
            return Operation(node.name, arguments, linear=str(node.target))
        if type(module) in _ELEMENTWISE_MODULES or (type(module) in _DROPOUTS and module.p == 0):
            return Operation(node.name, arguments, function=_applied(module))
    if node.op == "call_function" and node.target in _ELEMENTWISE_FUNCTIONS:
        return Operation(node.name, arguments, settings, function=node.target)  # type: ignore[arg-type]
    if node.op == "call_method" and node.target in _ELEMENTWISE_METHODS:
        return Operation(node.name, arguments, settings, function=getattr(Tensor, str(node.target)))
    return None


def _applied(module: nn.Module) -> Callable[..., Tensor]:
    """An elementwise module as a function that never writes over its argument."""
    if type(module) is nn.ReLU:
        return torch.relu
    if type(module) in (nn.Identity, *_DROPOUTS):
        return _unchanged
    if getattr(module, "inplace", False):
        return lambda value: module(value.clone())
    return module


def _unchanged(value: Tensor) -> Tensor:
    return value


def _flattens(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node lays each row's values out on one axis."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
    if (node.op == "call_function" and node.target is torch.flatten) or (
        node.op == "call_method" and node.target == "flatten"
    ):
        rest = {**dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)), **node.kwargs}
        return (rest.get("start_dim"), rest.get("end_dim", -1)) == (1, -1)
    return False
