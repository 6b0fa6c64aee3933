"""Settings from environment variables: text where the setting takes text, YAML elsewhere."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig

ROOT = Path(__file__).parents[3]
HOST = """
role: host
listen: 127.0.0.1:50051
peers: {coordinator: 127.0.0.1:50050, guest: 127.0.0.1:50052}
state: state
plaintext: true
datasets:
  people-2: {path: t.csv, exclude: [z]}
"""


def load(folder: Path, environment: Mapping[str, str], text: str = HOST) -> ProcessConfig:
    path = folder / "process.yaml"
    path.write_text(text)
    return load_process_config(path, environment)


def people(folder: Path, **values: str) -> DatasetConfig:
    environment = {f"TRILATERAL_DATASETS__PEOPLE_2__{name.upper()}": value for name, value in values.items()}
    return load(folder, environment).datasets["people-2"]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("exclude", "[a, b c]", ["a", "b c"]),
        ("exclude", "[]", []),
        ("exclude", "- a\n- b\n", ["a", "b"]),
        ("exclude", "[\"1\", 'no']", ["1", "no"]),
        ("missing", "[NA, -999, '?']", ["NA", "-999", "?"]),
        ("missing", "null", None),
        ("id", "[country, number]", ["country", "number"]),
        ("id", "no", "no"),
        ("id", "1e3", "1e3"),
        ("id", "null", "null"),
        ("id", "007", "007"),
        ("id", '"quoted"', "quoted"),
        ("id", "[unclosed", "[unclosed"),
        ("id", "a: b", "a: b"),
        ("preprocessing__clip", "[0.05, 0.95]", (0.05, 0.95)),
        ("preprocessing__clip", "null", None),
        ("preprocessing__fill", "0.5", 0.5),
        ("preprocessing__fill", "mean", "mean"),
        ("preprocessing__whiten", "false", False),
        ("preprocessing__whiten", "no", False),
    ],
)
def test_a_value_is_text_where_text_is_allowed_and_yaml_elsewhere(
    tmp_path: Path, setting: str, value: str, expected: object
) -> None:
    found: Any = people(tmp_path, **{setting: value})
    for key in setting.split("__"):
        found = getattr(found, key)
    assert found == expected


def test_a_mapping_may_be_given_as_a_whole_and_a_key_in_it_besides(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        {
            "TRILATERAL_DATASETS": "{people: {path: a.csv, label: null}, others: {path: b.csv}}",
            "TRILATERAL_DATASETS__OTHERS__ID": "key",
        },
    )
    assert sorted(config.datasets) == ["others", "people"]
    assert config.datasets["others"].id == "key"


def test_a_new_dataset_may_come_from_variables_alone(tmp_path: Path) -> None:
    config = load(tmp_path, {"TRILATERAL_DATASETS__NEW": "{path: n.csv}"})
    assert config.datasets["new"].path == tmp_path / "n.csv"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("EXCLUDE", "a, b", "expected a list, such as [a, b], not a, b"),
        ("EXCLUDE", "[a", "expected a list, such as [a, b], not [a"),
        ("EXCLUDE", "{a: 1}", "expected a list, such as [a, b]"),
        ("EXCLUDE", "", "is empty: give a value, such as [] for an empty list, or unset the variable"),
        ("ID", " ", "is empty: give a value, such as [] for an empty list, or unset the variable"),
        ("REPEATED_IDS", "[first]", "expected refuse, first or aggregate"),
        ("PREPROCESSING__RARE", "2", "expected less than 1, not 2"),
        ("PREPROCESSING__WHITEN", "maybe", "expected true or false, not maybe"),
        ("PREPROCESSING__CLIP", "0.1", "expected a list, such as [a, b], not 0.1"),
        ("LABEL", "y", "expected nested keys with values, not y"),
        ("EXCLUD", "[a]", "unknown key; did you mean exclude?"),
    ],
)
def test_an_invalid_value_is_named_with_its_variable_its_setting_and_what_is_allowed(
    tmp_path: Path, name: str, value: str, problem: str
) -> None:
    variable = f"TRILATERAL_DATASETS__PEOPLE_2__{name}"
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {variable: value})
    setting = f"datasets.people-2.{name.replace('__', '.').lower()}"
    assert str(error.value) == f"environment variable {variable}: {setting}: {problem}"


def test_an_invalid_entry_of_a_list_is_named_with_the_variable_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        people(tmp_path, features="[a, 3]", missing="[true]")
    text = "expected text (put a number, or a word such as yes, in quotes)"
    variable, setting = "environment variable TRILATERAL_DATASETS__PEOPLE_2__", "datasets.people-2."
    assert str(error.value).splitlines() == [
        f"{variable}MISSING: {setting}missing.0: {text}, not True",
        f"{variable}FEATURES: {setting}features.1: {text}, not 3",
    ]


def test_a_variable_that_could_mean_two_datasets_is_refused(tmp_path: Path) -> None:
    text = HOST + "  people.2: {path: u.csv}\n"
    with pytest.raises(ConfigError, match=r"PEOPLE_2 means each of people-2, people\.2: rename one of them"):
        load(tmp_path, {"TRILATERAL_DATASETS__PEOPLE_2__ID": "a"}, text)
    assert load(tmp_path, {"TRILATERAL_DATASETS__PEOPLE.2__ID": "a"}, text).datasets["people.2"].id == "a"


def test_variables_of_compose_and_kubernetes_are_no_settings(tmp_path: Path) -> None:
    load(
        tmp_path,
        {
            "TRILATERAL_MEMORY": "4g",
            "TRILATERAL_CPUS": "2",
            "TRILATERAL_HOST_SERVICE_HOST": "10.0.0.1",
            "TRILATERAL_HOST_SERVICE_PORT_GRPC": "50051",
            "TRILATERAL_HOST_PORT": "tcp://10.0.0.1:50051",
            "TRILATERAL_HOST_PORT_50051_TCP_ADDR": "10.0.0.1",
        },
    )
    with pytest.raises(ConfigError, match="TRILATERAL_PORT: port: unknown key"):
        load(tmp_path, {"TRILATERAL_PORT": "50051"})


def leaves(values: Mapping[str, Any], *parents: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, *parents, key)
        else:
            yield "__".join((*parents, key)).upper(), value


@pytest.mark.parametrize("role", ["host", "guest", "coordinator"])
def test_every_setting_of_a_file_can_be_given_by_a_variable(tmp_path: Path, role: str) -> None:
    """Except `role`, so that the file is not empty."""
    text = (ROOT / f"configs/three-hosts/{role}/process.yaml").read_text()
    values = yaml.safe_load(text)
    environment = {}
    for name, value in leaves(values):
        if name != "ROLE":
            flow = yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
            environment[f"TRILATERAL_{name}"] = flow
    assert load(tmp_path, environment, f"role: {role}\n") == load(tmp_path, {}, text)
