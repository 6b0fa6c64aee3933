"""Hypothesis strategies for requests of the wire contract, with any fields and any values."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Request
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=50) | st.just('{"name": "a", "dataset": "b"}') | st.just("a"),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=200) | st.just(bytes(16)),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1) | st.integers(0, 3),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1) | st.integers(0, 3),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.integers(-(2**31), 2**31 - 1) | st.integers(0, 9),
}


def values_of(field: Any) -> st.SearchStrategy[Any]:
    value = SCALARS[field.type] if field.message_type is None else requests(GetMessageClass(field.message_type))
    return st.lists(value, max_size=20) if field.label == FieldDescriptor.LABEL_REPEATED else value


def requests(kind: type[Request]) -> st.SearchStrategy[Any]:
    optional = {field.name: values_of(field) for field in kind.DESCRIPTOR.fields}
    return st.fixed_dictionaries({}, optional=optional).map(lambda fields: kind(**fields))
