"""A trained model as one ONNX file: preprocessing, network, thresholds and label names included.

Inputs of a model of tables are its columns, each of shape (rows, 1): numbers as doubles, categories as text. Other
models take `features`. Thresholds by group add the input `group`, a text; an unknown one, such as "", gets the single
threshold. Outputs are `label` and `probabilities`; a graph cannot refuse a row, so one with a missing or infinite
number gets the label "" and NaN as its probabilities. Where a column has one of these names, the input or output of
that name gets an underscore: `group_`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from ffalm.data.types import Task
from ffalm.errors import UserError, require
from ffalm.fairness.histograms import edge_value
from ffalm.system.files import file_of, require_replaceable, write_atomic
from ffalm.targets.repair import Repair

if TYPE_CHECKING:
    import onnx

    from ffalm.data.encoding import TableEncoding
    from ffalm.data.preprocessing import Preprocessing
    from ffalm.models.onnx_layers import Graph

_ML = "ai.onnx.ml"
_PRODUCER = "ffalm"


def write_onnx(
    file: str | Path,
    module: nn.Module,
    task: Task,
    shape: tuple[int, ...],
    pixels: bool,
    preprocessing: Preprocessing | None,
    repair: Repair | None,
) -> Path:
    """Write the model; `shape` is that of one row of features, `pixels` whether they are bytes."""
    try:
        import onnx
        from onnx import helper

        from ffalm.models.onnx_layers import OPSET, Graph, TensorProto, add_network
    except ImportError:
        raise UserError("Writing ONNX needs the package onnx: pip install 'ffalm[onnx]'.") from None
    place = file_of(file)
    require_replaceable(place, _PRODUCER, "an ONNX file of ffalm")
    require(
        repair is None or repair.kind != "randomised",
        "Randomised thresholds are drawn from each row's content, which ONNX cannot: make the answer with "
        "repair='groups' or 'single'.",
    )
    graph = Graph()
    if preprocessing is not None and preprocessing.table is not None:
        inputs, features = _columns(graph, preprocessing.table, preprocessing.missing == "mean")
    else:
        kind = TensorProto.UINT8 if pixels else TensorProto.FLOAT
        inputs, features = [helper.make_tensor_value_info("features", kind, ["rows", *shape])], "features"
        if pixels:
            numbers = graph.add("Cast", features, to=TensorProto.FLOAT)
            features = graph.add("Div", numbers, graph.constant(np.array(255, dtype=np.float32)))
    logits = add_network(graph, module, features)
    probable = graph.add("Softmax", logits, axis=-1)
    code = graph.add("ArgMax", logits, axis=-1, keepdims=0) if repair is None else ""
    if repair is not None:
        threshold, needed = _threshold(graph, repair, task, preprocessing)
        inputs += needed
        code = _decided(graph, logits, threshold, task)
    if not pixels:
        unusable = _unusable(graph, features, shape)
        code = graph.add("Where", unusable, graph.constant(np.array(-1)), code)  # no label's number
        rows = graph.add("Unsqueeze", unusable, graph.constant(np.array([1])))
        probable = graph.add("Where", rows, graph.constant(np.array(np.nan, dtype=np.float32)), probable)
    probabilities = graph.add("Identity", probable, name="probabilities")
    places = {"keys_int64s": list(range(task.labels)), "values_strings": list(task.label_names)}
    label = graph.add("LabelEncoder", code, name="label", domain=_ML, **places, default_string="")
    outputs = [
        helper.make_tensor_value_info(label, TensorProto.STRING, ["rows"]),
        helper.make_tensor_value_info(probabilities, TensorProto.FLOAT, ["rows", task.labels]),
    ]
    made = helper.make_graph(graph.nodes, "ffalm", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(_ML, 2)]
    model = helper.make_model(made, opset_imports=opsets, producer_name=_PRODUCER, ir_version=8)
    helper.set_model_props(model, _properties(task, repair) | _categories(preprocessing))
    onnx.checker.check_model(model)
    return write_atomic(place, model.SerializeToString())


def _properties(task: Task, repair: Repair | None) -> dict[str, str]:
    return {
        "labels": json.dumps(task.label_names),
        "favourable": task.label_names[task.favourable],
        "groups": json.dumps(task.group_names),
        "group_column": task.group,
        "thresholds": "none" if repair is None else repair.kind,
    }


def _categories(preprocessing: Preprocessing | None) -> dict[str, str]:
    """The texts that each category column may hold, "" for a missing value."""
    table = None if preprocessing is None else preprocessing.table
    if table is None:
        return {}
    known = {one.name: one.categories for one in table.columns if hasattr(one, "categories")}
    return {"categories": json.dumps({name: [one or "" for one in own] for name, own in known.items()})}


def _columns(graph: Graph, encoding: TableEncoding, fill: bool) -> tuple[list[onnx.ValueInfoProto], str]:
    """An input for each column, and the features made of them."""
    from onnx import TensorProto, helper

    from ffalm.data.encoding import NumericColumn

    inputs, parts = [], []
    graph.taken.update(column.name for column in encoding.columns)
    for column in encoding.columns:
        numeric = isinstance(column, NumericColumn)
        kind = TensorProto.DOUBLE if numeric else TensorProto.STRING
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["rows", 1]))
        if isinstance(column, NumericColumn) and column.scale == 0:
            missing = graph.add("Cast", graph.add("IsNaN", column.name), to=TensorProto.FLOAT)
            parts.append(graph.add("Mul", missing, graph.constant(np.array(0, dtype=np.float32))))  # whatever the value
        elif isinstance(column, NumericColumn):
            mean = graph.constant(np.array(column.mean))
            value = column.name
            if fill:
                value = graph.add("Where", graph.add("IsNaN", value), mean, value)
            deviation = column.scale
            if column.root is not None:
                mean, deviation = graph.constant(np.array(column.root[0])), column.root[1]
                root = graph.add("Sqrt", graph.add("Sqrt", graph.add("Abs", value)))
                value = graph.add("Mul", graph.add("Sign", value), root)
            scale = graph.constant(np.array(1 / deviation))
            standard = graph.add("Mul", graph.add("Sub", value, mean), scale)
            parts.append(graph.add("Cast", standard, to=TensorProto.FLOAT))
        else:
            known = ["" if category is None else category for category in column.categories]
            coded = graph.add("OneHotEncoder", column.name, domain=_ML, cats_strings=known, zeros=1)
            parts.append(graph.add("Flatten", coded, axis=1))
    return inputs, graph.add("Concat", *parts, axis=1)


def _threshold(
    graph: Graph, repair: Repair, task: Task, preprocessing: Preprocessing | None
) -> tuple[str, list[onnx.ValueInfoProto]]:
    """The threshold of each row's score, and the input of groups if thresholds differ between them."""
    from onnx import TensorProto, helper

    values = {name: edge_value(mix[0][0]) for name, mix in zip(task.group_names, repair.edges, strict=True)}
    single = edge_value(repair.single)
    if set(values.values()) <= {single}:
        return graph.constant(np.array(single, dtype=np.float32)), []
    merged = {} if preprocessing is None else preprocessing.group_values
    values |= {value: values[name] for value, name in merged.items() if value not in values}
    found: dict[str, Any] = {
        "keys_strings": list(values),
        "values_floats": list(values.values()),
        "default_float": single,
    }
    name = graph.free_name("group")
    threshold = graph.add("LabelEncoder", name, domain=_ML, **found)
    flat = graph.add("Reshape", threshold, graph.constant(np.array([-1])))
    return flat, [helper.make_tensor_value_info(name, TensorProto.STRING, ["rows", 1])]


def _unusable(graph: Graph, features: str, shape: tuple[int, ...]) -> str:
    """Which rows have a feature that is missing or infinite, which `predict` refuses."""
    from onnx import TensorProto

    odd = graph.add("Or", graph.add("IsNaN", features), graph.add("IsInf", features))
    axes = list(range(1, len(shape) + 1))
    found = graph.add("ReduceMax", graph.add("Cast", odd, to=TensorProto.FLOAT), axes=axes, keepdims=0)
    return graph.add("Cast", found, to=TensorProto.BOOL)


def _decided(graph: Graph, logits: str, threshold: str, task: Task) -> str:
    """The favourable label where the score reaches the threshold, else the most probable other label."""
    away = np.zeros(task.labels, dtype=np.float32)
    away[task.favourable] = -np.inf
    others = graph.add("Add", logits, graph.constant(away))
    best = graph.add("ReduceMax", others, axes=[-1], keepdims=0)
    own = graph.add("Gather", logits, graph.constant(np.array(task.favourable)), axis=1)
    reached = graph.add("GreaterOrEqual", graph.add("Sub", own, best), threshold)
    fallback = graph.add("ArgMax", others, axis=-1, keepdims=0)
    return graph.add("Where", reached, graph.constant(np.array(task.favourable)), fallback)
