"""A party's part of a model as an ONNX graph, which computes in doubles what `Preprocessing` computes.

An input is a column of the table, of shape (n_rows, 1): doubles, with NaN where a number is missing, or text, which is
empty where it is missing. The output is the party's part of each row's score, of shape (n_rows, 1).
"""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from trilateral.common.config.dataset import Transform
from trilateral.common.data.model.portable import NOTES, SCORE, Part
from trilateral.common.data.preprocessing.formulas import (
    Clipped,
    Filled,
    Formula,
    IsMissing,
    Lookup,
    Number,
    Piecewise,
    Product,
    Transformed,
)

_OPSET, _TEXT_OPSET, _IR_VERSION = 15, 2, 8
"""Versions of the operators, of those on text, and of the file. Runtimes since 2022 know them."""
_TEXT_DOMAIN = "ai.onnx.ml"


def onnx_bytes(part: Part) -> bytes:
    """Write a party's part as the content of an ONNX file.

    Args:
        part: what to write.
    """
    graph = _Graph(part)
    terms = graph.node("Concat", [graph.value(formula) for _, formula in part.terms.values()], axis=1)
    weights = [[weight] for weight, _ in part.terms.values()]
    output = part.unused(SCORE)
    graph.node("Add", [graph.node("MatMul", [terms, graph.constant(weights)]), graph.constant(part.intercept)], output)
    kinds = {False: TensorProto.DOUBLE, True: TensorProto.STRING}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            part.name,
            [helper.make_tensor_value_info(name, kinds[text], ["n_rows", 1]) for name, text in part.inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.DOUBLE, ["n_rows", 1])],
            graph.constants,
            doc_string="\n".join(NOTES),
        ),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_TEXT_DOMAIN, _TEXT_OPSET)],
        producer_name="trilateral",
        producer_version=version("trilateral"),
        ir_version=_IR_VERSION,
    )
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in part.properties.items()}
    if part.std_errors:
        texts["std_errors"] = json.dumps(part.std_errors)
    if part.intercept_error is not None:
        texts["intercept_error"] = repr(part.intercept_error)
    helper.set_model_props(model, texts)
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)


class _Graph:
    """The nodes of a graph. What several formulas have in common is computed once."""

    def __init__(self, part: Part) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._part = part
        taken = {*part.inputs, part.unused(SCORE)}
        self._names = (name for number in count() if (name := f"#{number}") not in taken)
        self._values: dict[int, str] = {}
        self._sources: dict[str, str] = {}
        self._places: dict[tuple[str, tuple[str, ...]], str] = {}

    def constant(self, value: ArrayLike) -> str:
        """Add a constant of doubles and return its name."""
        return self._constant(np.asarray(value, dtype=np.float64))

    def node(self, operator: str, inputs: Iterable[str], output: str | None = None, /, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = next(self._names) if output is None else output
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def value(self, formula: Formula) -> str:
        """Return the name of a formula's value, doubles of shape (n_rows, 1)."""
        key = id(formula)  # The part keeps the formulas alive.
        if key not in self._values:
            self._values[key] = self._new_value(formula)
        return self._values[key]

    def _new_value(self, formula: Formula) -> str:
        match formula:
            case Number(source):
                return self._number(source)
            case IsMissing(source) if self._part.inputs[source]:
                return self._looked_up(source, {}, 1, 0)
            case IsMissing(source):
                return self.node("Cast", [self.node("IsNaN", [self._number(source)])], to=TensorProto.DOUBLE)
            case Lookup(source, numbers, missing, other):
                return self._looked_up(source, numbers, missing, other)
            case Filled(of, value):
                x = self.value(of)
                return self.node("Where", [self.node("IsNaN", [x]), self.constant(value), x])
            case Clipped(of, lower, upper):
                limits = ["" if limit is None else self.constant(limit) for limit in (lower, upper)]
                return self.node("Clip", [self.value(of), *limits])
            case Transformed(of, transform, power):
                return self._transformed(self.value(of), transform, power)
            case Piecewise(of, breaks, coefs):
                return self._piecewise(self.value(of), breaks, coefs)
            case Product(left, right):
                return self.node("Mul", [self.value(left), self.value(right)])

    def _transformed(self, x: str, transform: Transform, power: float | None) -> str:
        match transform:
            case "log":
                return self.node("Log", [x])
            case "log1p":
                return self.node("Log", [self.node("Add", [x, self.constant(1)])])
            case "sqrt":
                return self.node("Sqrt", [x])
            case "yeo_johnson":
                size, exponent = self.node("Add", [self.node("Abs", [x]), self.constant(1)]), power or 0.0
                negative = self.node("Neg", [self._power(size, 2 - exponent)])
                return self.node(
                    "Where", [self.node("Less", [x, self.constant(0)]), negative, self._power(size, exponent)]
                )

    def _power(self, size: str, exponent: float) -> str:
        """Return the name of (size^exponent - 1) / exponent, which is a logarithm at an exponent of 0."""
        if exponent == 0:
            return self.node("Log", [size])
        raised = self.node("Pow", [size, self.constant(exponent)])
        return self.node("Div", [self.node("Sub", [raised, self.constant(1)]), self.constant(exponent)])

    def _number(self, source: str) -> str:
        """Return the name of a column of numbers, with NaN for each number that means a missing value."""
        if source not in self._sources:
            x = source
            for code in self._part.missing_numbers:
                x = self.node("Where", [self.node("Equal", [x, self.constant(code)]), self.constant(np.nan), x])
            self._sources[source] = x
        return self._sources[source]

    def _looked_up(self, source: str, numbers: Mapping[str, float], missing: float, other: float) -> str:
        known = tuple(numbers)
        if (source, known) not in self._places:
            gone = [text for text in self._part.missing_texts if text not in numbers]
            self._places[source, known] = self.node(
                "LabelEncoder",
                [source],
                domain=_TEXT_DOMAIN,
                keys_strings=[*known, *gone],
                values_int64s=[*range(len(known)), *[len(known)] * len(gone)],
                default_int64=len(known) + 1,
            )
        table = self.constant([*numbers.values(), missing, other])
        return self.node("Gather", [table, self._places[source, known]])

    def _piecewise(self, x: str, breaks: tuple[float, ...], coefs: tuple[tuple[float, ...], ...]) -> str:
        is_beyond = self.node("GreaterOrEqual", [x, self.constant([breaks])])
        n_beyond = self.node("Cast", [is_beyond], to=TensorProto.INT64)
        piece = self.node("ReduceSum", [n_beyond, self._constant(np.array([1]))], keepdims=1)
        t = self.node("Sub", [x, self.node("Gather", [self.constant([*breaks[:1], *breaks] or [0]), piece])])
        *lower, highest = (self.node("Gather", [self.constant(each), piece]) for each in zip(*coefs, strict=True))
        total = highest
        for coef in reversed(lower):
            total = self.node("Add", [self.node("Mul", [total, t]), coef])
        return self.node("Where", [self.node("IsNaN", [x]), x, total])

    def _constant(self, value: NDArray[np.float64] | NDArray[np.int64]) -> str:
        name = next(self._names)
        self.constants.append(numpy_helper.from_array(value, name))
        return name
