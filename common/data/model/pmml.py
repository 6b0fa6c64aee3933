"""A party's part of a model as PMML 4.4: a regression model whose derived fields are the terms.

Source: Data Mining Group, PMML 4.4, https://dmg.org/pmml/v4-4/GeneralStructure.html.
"""

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from trilateral.common.base.errors import DataError
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

_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, and the carriage return, which a reader changes."""


STD_ERROR = "std_error"
"""Name of the extension with the standard error of a coefficient or, in the table of coefficients, of the intercept."""


def pmml_text(part: Part) -> str:
    """Write a party's part as the text of a PMML file.

    Args:
        part: what to write.

    Raises:
        DataError: a name or a category has a character that XML cannot hold; the text names the column.
    """
    root = Element("PMML", {"version": "4.4", "xmlns": "http://www.dmg.org/PMML-4_4"})
    header = SubElement(root, "Header", {"description": f"the {part.properties['role']}'s part of job {part.name}"})
    for key, value in part.properties.items():
        text = value if isinstance(value, str) else json.dumps(value)
        _add_extension(header, key, text)
    SubElement(header, "Application", {"name": "trilateral", "version": version("trilateral")})
    for note in NOTES:
        SubElement(header, "Annotation").text = note
    _add_dictionary(root, part)
    model = SubElement(root, "RegressionModel", {"modelName": part.name, "functionName": "regression"})
    schema = SubElement(model, "MiningSchema")
    for name in part.inputs:
        SubElement(schema, "MiningField", {"name": name})
    output = {"name": part.unused(SCORE), "feature": "predictedValue", "optype": "continuous", "dataType": "double"}
    SubElement(SubElement(model, "Output"), "OutputField", output)
    fields = _Fields(part, SubElement(model, "LocalTransformations"))
    table = SubElement(model, "RegressionTable", {"intercept": repr(part.intercept)})
    if part.intercept_error is not None:
        _add_extension(table, STD_ERROR, repr(part.intercept_error))
    for term, (weight, formula) in part.terms.items():
        predictor = {"name": fields.term(term, formula), "coefficient": repr(weight)}
        element = SubElement(table, "NumericPredictor", predictor)
        if term in part.std_errors:
            _add_extension(element, STD_ERROR, repr(part.std_errors[term]))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_extension(place: Element, name: str, value: str) -> None:
    """Add a fact that the standard has no element for."""
    SubElement(place, "Extension", {"extender": "trilateral", "name": name, "value": value})


def _add_dictionary(root: Element, part: Part) -> None:
    dictionary = SubElement(root, "DataDictionary", {"numberOfFields": str(len(part.inputs))})
    for name, is_text in part.inputs.items():
        if _NOT_XML.search(name):
            raise DataError(f"PMML cannot hold a character in the name of column {name!r}: use `--format onnx`")
        kind = ("categorical", "string") if is_text else ("continuous", "double")
        field = SubElement(dictionary, "DataField", {"name": name, "optype": kind[0], "dataType": kind[1]})
        for code in part.missing_texts if is_text else map(repr, part.missing_numbers):
            SubElement(field, "Value", {"value": code, "property": "missing"})


class _Fields:
    """The derived fields of a model. What several formulas have in common is one field."""

    def __init__(self, part: Part, place: Element) -> None:
        self._place = place
        self._part = part
        self._fields: dict[int, str] = {}
        self._names = set(part.inputs)

    def term(self, term: str, formula: Formula) -> str:
        """Add the field of a term and return its name."""
        return self._field(f"term {term}", formula)

    def _field(self, name: str, formula: Formula) -> str:
        """Add a field for a formula, unless there is one, and return its name."""
        if isinstance(formula, Number):
            return formula.source
        key = id(formula)  # The part keeps the formulas alive.
        if key not in self._fields:
            expression = self._expression(formula)  # This may add the fields that it refers to.
            while name in self._names:
                name += "_"
            self._names.add(name)
            self._fields[key] = name
            field = {"name": name, "optype": "continuous", "dataType": "double"}
            SubElement(self._place, "DerivedField", field).append(expression)
        return self._fields[key]

    def _step(self, formula: Formula) -> Element:
        """Return a reference to a formula that is a step of another one."""
        return _reference(self._field(f"step {len(self._fields) + 1}", formula))

    def _expression(self, formula: Formula) -> Element:
        match formula:
            case Number(source):
                return _reference(source)
            case IsMissing(source):
                return _if(_apply("isMissing", _reference(source)), _constant(1), _constant(0))
            case Lookup(source, numbers, missing, other):
                return _lookup(source, numbers, missing, other)
            case Filled(of, value):
                return _if(_apply("isMissing", self._step(of)), _constant(value), self._step(of))
            case Clipped(of, lower, upper):
                # `min` and `max` would pass over a missing value.
                x = clipped = self._step(of)
                if upper is not None:
                    clipped = _if(_apply("greaterThan", x, _constant(upper)), _constant(upper), clipped)
                if lower is not None:
                    clipped = _if(_apply("lessThan", x, _constant(lower)), _constant(lower), clipped)
                return clipped
            case Transformed(of, transform, power):
                return _transformed(self._step(of), transform, power)
            case Piecewise(of, breaks, coefs):
                return self._piecewise(of, breaks, coefs)
            case Product(left, right):
                return _apply("*", self._step(left), self._step(right))

    def _piecewise(self, of: Formula, breaks: tuple[float, ...], coefs: tuple[tuple[float, ...], ...]) -> Element:
        x = self._step(of)
        pieces = [_polynomial(x, *each) for each in zip([*breaks[:1], *breaks] or [0.0], coefs, strict=True)]
        piece = pieces.pop()
        for limit in reversed(breaks):
            piece = _if(_apply("lessThan", x, _constant(limit)), pieces.pop(), piece)
        # Some programs take a comparison with a missing value for false.
        return _if(_apply("isMissing", x), x, piece)


def _transformed(x: Element, transform: Transform, power: float | None) -> Element:
    match transform:
        case "log":
            return _apply("ln", x)
        case "log1p":
            return _apply("ln", _apply("+", x, _constant(1)))
        case "sqrt":
            return _apply("sqrt", x)
        case "yeo_johnson":
            size, exponent = _apply("+", _apply("abs", x), _constant(1)), power or 0.0
            negative = _apply("-", _constant(0), _power(size, 2 - exponent))
            return _if(_apply("lessThan", x, _constant(0)), negative, _power(size, exponent))


def _power(size: Element, exponent: float) -> Element:
    """Return (size^exponent - 1) / exponent, which is a logarithm at an exponent of 0."""
    if exponent == 0:
        return _apply("ln", size)
    raised = _apply("pow", size, _constant(exponent))
    return _apply("/", _apply("-", raised, _constant(1)), _constant(exponent))


def _polynomial(x: Element, start: float, coefs: tuple[float, ...]) -> Element:
    *lower, highest = coefs
    total = _constant(highest)
    for coef in reversed(lower):
        total = _apply("+", _apply("*", total, _apply("-", x, _constant(start))), _constant(coef))
    return total


def _lookup(source: str, numbers: Mapping[str, float], missing: float, other: float) -> Element:
    if any(_NOT_XML.search(category) or category != category.strip() for category in numbers):
        raise DataError(f"PMML cannot hold a character in a category of column {source!r}: use `--format onnx`")
    found = {"outputColumn": "number", "dataType": "double", "defaultValue": repr(float(other))}
    mapped = Element("MapValues", {**found, "mapMissingTo": repr(float(missing))})
    SubElement(mapped, "FieldColumnPair", {"field": source, "column": "category"})
    table = SubElement(mapped, "InlineTable")
    for category, number in numbers.items():
        row = SubElement(table, "row")
        SubElement(row, "category").text = category
        SubElement(row, "number").text = repr(float(number))
    return mapped


def _reference(field: str) -> Element:
    return Element("FieldRef", {"field": field})


def _constant(value: float) -> Element:
    constant = Element("Constant", {"dataType": "double"})
    constant.text = repr(float(value))
    return constant


def _apply(function: str, *arguments: Element) -> Element:
    applied = Element("Apply", {"function": function})
    applied.extend(arguments)
    return applied


def _if(condition: Element, then: Element, otherwise: Element) -> Element:
    return _apply("if", condition, then, otherwise)
