"""Every decoder turns any input into a value, or raises an error with a public text."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.requests import requests
from trilateral.common.base.errors import ConfigError, DataError, TrilateralError
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.data.model.model_file import load_model
from trilateral.common.rpc.codec import parse_job
from trilateral.common.rpc.routes import MESSAGE_ROUTES, MessageRoute, decode

MAX_BYTES_FOR_A_BYTE = 200
"""Bytes that a decoder may allocate for each byte of its input, in addition to `SLACK`."""
SLACK = 1 << 20


def decode_bytes(route: MessageRoute, body: bytes) -> None:
    try:
        message = decode(route.request.FromString(body))
    except (DecodeError, TrilateralError):
        return
    assert isinstance(message, route.message)


@pytest.mark.parametrize("route", MESSAGE_ROUTES, ids=lambda route: route.path)
@given(data=st.data())
def test_any_request_is_a_message_or_is_refused(route: MessageRoute, data: st.DataObject) -> None:
    decode_bytes(route, data.draw(requests(route.request)).SerializeToString())


@pytest.mark.parametrize("route", MESSAGE_ROUTES, ids=lambda route: route.path)
@given(data=st.data())
def test_a_request_with_bytes_changed_is_a_message_or_is_refused(route: MessageRoute, data: st.DataObject) -> None:
    body = bytearray(data.draw(requests(route.request)).SerializeToString())
    for position in data.draw(st.lists(st.integers(0, max(0, len(body) - 1)), max_size=4)):
        if body:
            body[position] = data.draw(st.integers(0, 255))
    decode_bytes(route, bytes(body[: data.draw(st.integers(0, len(body)))]))


@pytest.mark.parametrize("route", MESSAGE_ROUTES, ids=lambda route: route.path)
def test_a_decoder_allocates_in_proportion_to_its_input(route: MessageRoute) -> None:
    """Requests announce the largest sizes, and contain next to nothing."""
    request = route.request()
    for field in request.DESCRIPTOR.fields:
        if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64):
            setattr(request, field.name, 2**31)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(request, field.name, bytes(64))
    body = request.SerializeToString()
    tracemalloc.start()
    try:
        decode_bytes(route, body)
        assert tracemalloc.get_traced_memory()[1] < SLACK + MAX_BYTES_FOR_A_BYTE * len(body)
    finally:
        tracemalloc.stop()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    [
        "name",
        "dataset",
        "algorithm",
        "batch",
        "epochs",
        "tolerance",
        "l2",
        "holdout",
        "seed",
        "key_bits",
        "cipher",
        "slots",
        "role",
        "listen",
        "peers",
        "tls",
        "plaintext",
        "operators",
        "state",
        "datasets",
        "policy",
        "limits",
        "path",
        "id",
        "label",
        "preprocessing",
        "weights",
        "job",
        "metrics",
    ]
)
SETTINGS = st.dictionaries(KEYS | st.text(max_size=10), JSON | st.dictionaries(KEYS, JSON, max_size=4), max_size=8)


def expect_refusal(parse: Callable[[], object], source: str) -> None:
    """Accept a parsed value, or a refusal that names the file or message."""
    with contextlib.suppress(ConfigError):
        try:
            parse()
        except ConfigError as error:
            if source not in str(error):
                raise AssertionError("the refusal does not name the file or message") from error
            raise


@given(text=st.text(max_size=300) | JSON.map(json.dumps) | SETTINGS.map(json.dumps))
def test_any_text_is_a_job_or_is_refused(text: str) -> None:
    expect_refusal(lambda: parse_job(text), "the job: ")


@pytest.mark.parametrize("load", [load_job, lambda path: load_process_config(path, {})], ids=["job", "process"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | SETTINGS.map(yaml.dump).map(str.encode)
)
def test_any_file_is_a_configuration_or_is_refused(load: Any, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    expect_refusal(lambda: load(path), "any.yaml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | SETTINGS.map(json.dumps).map(str.encode))
def test_any_file_is_a_model_or_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(DataError):
        load_model(path)
