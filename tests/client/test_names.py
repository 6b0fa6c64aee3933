"""What `import trilateral` offers, and what it costs."""

import subprocess
import sys

import pytest

import trilateral


def test_names_are_sorted_and_all_there() -> None:
    assert list(trilateral.__all__) == sorted(trilateral.__all__)
    assert set(trilateral.__all__) <= set(dir(trilateral))
    for name in trilateral.__all__:
        found = getattr(trilateral, name)
        assert found.__doc__, name


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'konnect'"):
        getattr(trilateral, "konnect")  # noqa: B009


def test_the_import_loads_nothing_that_takes_long() -> None:
    code = "import trilateral, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pandas", "grpc", "pydantic", "google.protobuf", "typer"} & set(loaded)


def test_no_type_of_the_wire_is_public() -> None:
    for name in trilateral.__all__:
        assert ".pb." not in getattr(trilateral, name).__module__
