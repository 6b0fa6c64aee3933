"""What `import trilateral` offers, and what it costs."""

import pydoc
import subprocess
import sys
from typing import Any

import pytest

import trilateral
from trilateral.common.config.settings import Settings, parse_settings


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


def test_help_on_a_job_lists_each_option_with_its_meaning() -> None:
    text = pydoc.plain(pydoc.render_doc(trilateral.Job))
    introduction = text.partition("Method resolution order")[0]
    for name in trilateral.Job.model_fields:
        assert f"    {name}: " in introduction, name
    assert "Annotated" not in introduction


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "a", "dataset": "b", "patience": 3}, "job: `patience` counts evaluations: set `evaluate_every`"),
        ({"name": "a", "dataset": "b", "epoch": 3}, "job: epoch: unknown key; did you mean epochs?"),
        ({"name": "a", "dataset": "b", "algorithm": "sgd"}, r"job: algorithm: expected .* \{name: sgd\}"),
        ({"name": "a"}, "job: dataset: is missing"),
    ],
)
def test_a_job_that_cannot_be_is_refused_in_the_words_of_the_command_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(trilateral.ConfigError, match=f"^{said}"):
        trilateral.Job(**options)


def test_a_job_within_other_settings_keeps_its_place_in_the_error() -> None:
    class Outer(Settings):
        job: trilateral.Job

    with pytest.raises(trilateral.ConfigError, match=r"^file: job\.epoch: unknown key"):
        parse_settings(Outer, {"job": {"name": "a", "dataset": "b", "epoch": 3}}, "file")
