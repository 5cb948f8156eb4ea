"""The layers of a network as ONNX nodes: all that the built-in models are made of, found by tracing the module."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, fx, nn
from torch.nn import functional

from ffalm.errors import UserError
from ffalm.models.tracing import graph_of

#: The version of ONNX's operators that graphs are written in.
OPSET = 17


@dataclass
class Graph:
    """Nodes and constants while a graph is written; every value has a name of its own."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)  # names of values, among them those of a table's columns

    def free_name(self, wanted: str) -> str:
        """The wanted name, with an underscore added for as long as another value has it."""
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        return wanted

    def add(self, operation: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        """A node with one output; its name."""
        output = self.free_name(name or f"{operation.lower()}_{len(self.nodes)}")
        self.nodes.append(helper.make_node(operation, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, value: Any) -> str:
        """A tensor that is part of the graph; its name."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        name = self.free_name(f"constant_{len(self.constants)}")
        self.constants.append(numpy_helper.from_array(array, name))
        return name


def add_network(graph: Graph, module: nn.Module, features: str) -> str:
    """Add a network in evaluation mode to a graph; the name of its logits."""
    try:
        traced = graph_of(module.eval())
    except Exception:  # tracing a user's code fails in any way
        raise UserError("This model cannot be written as ONNX: its forward function branches on data.") from None
    modules = dict(module.named_modules())
    known: dict[str, str] = {}
    for node in traced.nodes:
        values = [known[one.name] for one in node.all_input_nodes]
        if node.op == "placeholder":
            known[node.name] = features
        elif node.op == "output":
            return values[0]
        elif node.op == "call_module":
            known[node.name] = _layer(graph, modules[str(node.target)], values[0])
        elif (write := _FUNCTIONS.get(node.target)) is not None:
            known[node.name] = write(graph, values, node)
        else:
            raise UserError(f"This model cannot be written as ONNX: the operation {node.target} is not known.")
    raise AssertionError("a traced graph has an output")


def _layer(graph: Graph, layer: nn.Module, value: str) -> str:
    if isinstance(layer, nn.Linear):
        bias = [] if layer.bias is None else [graph.constant(layer.bias.float())]
        return graph.add("Gemm", value, graph.constant(layer.weight.float()), *bias, transB=1)
    if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        bias = [] if layer.bias is None else [graph.constant(layer.bias.float())]
        window = _window(layer.kernel_size, layer.stride, layer.padding)
        weight = graph.constant(layer.weight.float())
        return graph.add("Conv", value, weight, *bias, **window, dilations=list(layer.dilation), group=layer.groups)
    if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
        statistics = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
        return graph.add("BatchNormalization", value, *(graph.constant(one) for one in statistics), epsilon=layer.eps)
    if isinstance(layer, nn.MaxPool2d) and layer.dilation == 1 and not layer.ceil_mode:
        return graph.add("MaxPool", value, **_window(layer.kernel_size, layer.stride, layer.padding))
    if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
        return graph.add("GlobalAveragePool", value)
    if isinstance(layer, nn.Flatten) and layer.start_dim == 1:
        return graph.add("Flatten", value, axis=1)
    if isinstance(layer, nn.ReLU):
        return graph.add("Relu", value)
    if isinstance(layer, nn.Identity | nn.Dropout):
        return value
    raise UserError(f"This model cannot be written as ONNX: the layer {type(layer).__name__} is not known.")


def _window(kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    height, width = _pair(padding)
    return {"kernel_shape": _pair(kernel), "strides": _pair(stride), "pads": [height, width, height, width]}


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value, value]


def _mean(graph: Graph, values: list[str], node: fx.Node) -> str:
    axes = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]
    keep = int(bool(node.kwargs.get("keepdim", False)))
    return graph.add("ReduceMean", values[0], axes=[int(axis) for axis in axes], keepdims=keep)  # type: ignore[union-attr, arg-type]


def _average(graph: Graph, values: list[str], node: fx.Node) -> str:
    kernel = node.args[1] if len(node.args) > 1 else node.kwargs["kernel_size"]
    stride = node.kwargs.get("stride", kernel)
    window = _window(kernel, stride, node.kwargs.get("padding", 0))
    return graph.add("AveragePool", values[0], **window, count_include_pad=1)


_FUNCTIONS: dict[Any, Callable[[Graph, list[str], fx.Node], str]] = {
    operator.add: lambda graph, values, node: graph.add("Add", *values),
    functional.relu: lambda graph, values, node: graph.add("Relu", values[0]),
    torch.relu: lambda graph, values, node: graph.add("Relu", values[0]),
    torch.flatten: lambda graph, values, node: graph.add("Flatten", values[0], axis=1),
    functional.avg_pool2d: _average,
    torch._C._nn.avg_pool2d: _average,
    "mean": _mean,
    "flatten": lambda graph, values, node: graph.add("Flatten", values[0], axis=1),
    "relu": lambda graph, values, node: graph.add("Relu", values[0]),
}

__all__ = ["OPSET", "Graph", "TensorProto", "add_network"]
