"""The files in configs/ are what a new user copies: they must load, and must show every option."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from trilateral.common.base.roles import Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import GUEST_POLICY, HOST_POLICY, Policy, ScratchConfig, TlsConfig
from trilateral.common.config.settings import Settings
from trilateral.common.trial.development import DevelopmentFiles, development_name

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize("role", list(Role))
def test_the_demo_has_a_configuration_for_each_role(role: Role) -> None:
    config = load_process_config(CONFIGS / f"demo/{role}.yaml", {})
    assert config.role is role


def test_the_demo_processes_agree_on_their_addresses() -> None:
    configs = {role: load_process_config(CONFIGS / f"demo/{role}.yaml", {}) for role in Role}
    for config in configs.values():
        addresses = {role: peer.address for role, peer in config.peers.items()}
        assert addresses == {role: other.listen for role, other in configs.items() if role is not config.role}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("jobs/*.yaml")), ids=lambda path: path.stem)
def test_jobs_load_and_can_run_beside_each_other(path: Path) -> None:
    assert load_job(path).name == path.stem


@pytest.mark.parametrize(
    ("path", "algorithm"), [("lbfgs", "lbfgs"), ("paper-sqn", "sqn"), ("sgd", "sgd"), ("shares", "lbfgs")]
)
def test_there_is_a_job_for_each_algorithm(path: str, algorithm: str) -> None:
    assert load_job(CONFIGS / f"jobs/{path}.yaml").algorithm.name == algorithm


def test_there_is_a_job_for_each_protocol() -> None:
    protocols = {path.stem: load_job(path).protocol for path in CONFIGS.glob("jobs/*.yaml")}
    assert protocols == {"lbfgs": "paillier", "paper-sqn": "paillier", "sgd": "paillier", "shares": "shares"}


def option_names(settings: BaseModel) -> Iterator[str]:
    for name in type(settings).model_fields:
        yield name
        value = getattr(settings, name)
        for inner in value.values() if isinstance(value, dict) else [value]:
            if isinstance(inner, Settings):
                yield from option_names(inner)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("jobs/*.yaml")), ids=lambda path: path.stem)
def test_jobs_show_every_option(path: Path) -> None:
    text = path.read_text()
    assert [name for name in option_names(load_job(path)) if f"{name}:" not in text] == []


ENGINE = ["engine", "kind", "scheduler"]
ONLINE = ["online", "precompute", "max_per_second"]
OPERATORS = ["operators", "start", "stop", "watch"]


@pytest.mark.parametrize("folder", ["demo", "three-hosts"])
@pytest.mark.parametrize(
    ("role", "means_nothing_there"),
    [
        (Role.HOST, [*OPERATORS, "label", *GUEST_POLICY, "max_per_second"]),
        (Role.GUEST, [*OPERATORS, "reason_labels", *HOST_POLICY, "precompute"]),
        (
            Role.COORDINATOR,
            ["datasets", "policy", *Policy.model_fields, "scratch", *ScratchConfig.model_fields, *ENGINE, *ONLINE],
        ),
    ],
)
def test_processes_show_every_option_that_means_something_there(
    role: Role, means_nothing_there: list[str], folder: str
) -> None:
    path = CONFIGS / "demo" / f"{role}.yaml" if folder == "demo" else CONFIGS / folder / role / "process.yaml"
    text = path.read_text()
    names = option_names(load_process_config(path, {}))
    assert [name for name in names if not re.search(rf"\b{name}:", text)] == means_nothing_there


@pytest.mark.parametrize("role", list(Role))
def test_the_demo_takes_the_certificates_that_one_command_makes(role: Role) -> None:
    command = "trilateral certs development --out configs/demo/certs"
    assert command in (CONFIGS.parent / "docs/tutorial.md").read_text()
    config = load_process_config(CONFIGS / f"demo/{role}.yaml", {})
    made = DevelopmentFiles(CONFIGS / "demo/certs").settings(role)
    assert config.tls == TlsConfig.model_validate(made)
    assert {peer.certificate_name for peer in config.peers.values()} == {
        development_name(other) for other in Role if other is not role
    }


def test_the_documents_certificates_are_a_configuration(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(tls:.*?)```", (CONFIGS.parent / "docs/configuration.md").read_text(), re.DOTALL)
    path = tmp_path / "guest.yaml"
    path.write_text(f"role: guest\nlisten: 0.0.0.0:50052\nstate: state\n{block}")
    names = {role: peer.certificate_name for role, peer in load_process_config(path, {}).peers.items()}
    assert names == {Role.HOST: "host.insurer.example.org", Role.COORDINATOR: "coordinator.example.net"}
