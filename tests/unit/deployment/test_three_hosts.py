"""configs/three-hosts: the three configurations fit each other, and the service and Compose files fit them."""

import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import ROOT, read_compose, read_image
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig

FOLDER = ROOT / "configs/three-hosts"
CONFIGS = {role: load_process_config(FOLDER / role / "process.yaml", {}) for role in Role}
PATHS = {"/etc/trilateral", "/srv/trilateral", "/var/lib/trilateral"}
"""Folders of a machine that runs one of the three, and of the image."""


def unit(role: Role) -> configparser.ConfigParser:
    class Unit(configparser.ConfigParser):
        """Keep the last value of a repeated setting."""

        def optionxform(self, optionstr: str) -> str:
            return optionstr

    parser = Unit(strict=False, interpolation=None, delimiters="=")
    parser.read_string((FOLDER / role / "trilateral.service").read_text())
    return parser


def container(role: Role) -> dict[str, Any]:
    service: dict[str, Any] = read_compose(FOLDER / role / "compose.yaml")["services"][role]
    return service


def paths_in(config: ProcessConfig) -> Iterator[Path]:
    assert config.tls is not None
    yield from (config.tls.certificate, config.tls.key, config.tls.authorities, config.state)
    yield from (dataset.path for dataset in config.datasets.values())


@pytest.mark.parametrize("role", list(Role))
def test_each_process_listens_where_the_others_expect_it(role: Role) -> None:
    config = CONFIGS[role]
    assert config.role is role
    for other, peer in config.peers.items():
        name, _, port = peer.address.rpartition(":")
        assert CONFIGS[other].listen == f"0.0.0.0:{port}"
        assert peer.name == name
        assert f"certs request --name {name}" in (FOLDER / other / "process.yaml").read_text().replace("\n# ", " ")
        (third,) = set(Role) - {role, other}
        assert CONFIGS[third].peers[other] == peer


def test_the_first_job_finds_its_table_at_both_parties() -> None:
    job = load_job(FOLDER / "guest/job.yaml")
    assert all(job.dataset in CONFIGS[role].datasets for role in PARTIES)
    assert CONFIGS[Role.GUEST].datasets[job.dataset].label is not None


@pytest.mark.parametrize("role", list(Role))
def test_files_are_in_the_folders_of_the_service_and_of_the_container(role: Role) -> None:
    assert {folder for path in paths_in(CONFIGS[role]) for folder in PATHS if path.is_relative_to(folder)} == (
        PATHS if role in PARTIES else PATHS - {"/srv/trilateral"}
    )
    assert all(any(path.is_relative_to(folder) for folder in PATHS) for path in paths_in(CONFIGS[role]))
    volumes = [volume.split(":") for volume in container(role)["volumes"]]
    assert {target for _, target, *_ in volumes} == (PATHS if role in PARTIES else PATHS - {"/srv/trilateral"})
    assert [target for _, target, *mode in volumes if mode != ["ro"]] == ["/var/lib/trilateral"]
    service = unit(role)["Service"]
    assert f"/var/lib/{service['StateDirectory']}" == str(CONFIGS[role].state)


@pytest.mark.parametrize("role", list(Role))
def test_service_and_container_run_the_same_command(role: Role) -> None:
    command = ["serve", role, "--config", "/etc/trilateral/process.yaml"]
    assert unit(role)["Service"]["ExecStart"].split() == ["/opt/trilateral/bin/trilateral", *command]
    settings = container(role)
    assert settings["command"] == command
    port = CONFIGS[role].listen.rpartition(":")[2]
    assert settings["ports"] == [f"{port}:{port}"]
    image = read_image()
    assert settings["healthcheck"]["test"] == ["CMD", *image.health_check]
    assert settings["user"] == image.user


@pytest.mark.parametrize("role", list(Role))
def test_services_restart_after_any_failure_but_not_forever(role: Role) -> None:
    settings = unit(role)
    assert settings["Service"]["Restart"] == "on-failure"
    assert "RestartPreventExitStatus" not in settings["Service"]
    times, interval = int(settings["Unit"]["StartLimitBurst"]), int(settings["Unit"]["StartLimitIntervalSec"])
    # Long enough for temporary failures, such as a missing address, and short enough to reach the limit.
    assert 300 <= times * int(settings["Service"]["RestartSec"]) < interval
    assert settings["Service"]["User"] == "trilateral"


@pytest.mark.parametrize("role", list(Role))
def test_no_server_makes_core_dumps_and_the_coordinator_may_lock_its_memory(role: Role) -> None:
    locks = {"memlock": -1} if role is Role.COORDINATOR else {}
    assert container(role)["ulimits"] == {"core": 0, **locks}
    assert read_compose(ROOT / "docker-compose.yml")["services"][role]["ulimits"] == {"core": 0, **locks}
    service = unit(role)["Service"]
    assert service["LimitCORE"] == "0"
    assert service.get("LimitMEMLOCK") == ("infinity" if locks else None)


@pytest.mark.parametrize("role", list(Role))
def test_containers_restart_after_a_failure_and_with_the_machine(role: Role) -> None:
    assert container(role)["restart"] == "unless-stopped"


def test_each_compose_file_is_its_own_project() -> None:
    """Compose would replace or remove containers of another file with the same project name."""
    files = [ROOT / "docker-compose.yml", *(FOLDER / role / "compose.yaml" for role in Role)]
    assert len({read_compose(file)["name"] for file in files}) == len(files)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_lines_are_no_longer_than_those_of_code(path: Path) -> None:
    assert max(map(len, path.read_text().splitlines())) <= 120


@pytest.mark.parametrize("role", list(Role))
def test_a_commented_line_publishes_the_metrics_of_a_container(role: Role) -> None:
    text = (FOLDER / role / "compose.yaml").read_text()
    changed = yaml.safe_load(text.replace('# - "127.0.0.1:9464', '- "127.0.0.1:9464'))
    assert changed["services"][role]["ports"][1:] == ["127.0.0.1:9464:9464"]


@pytest.mark.parametrize("role", list(Role))
def test_containers_have_no_more_rights_than_they_need(role: Role) -> None:
    settings = container(role)
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert settings["pull_policy"] == "never"


@pytest.mark.parametrize("file", ["trilateral.service", "compose.yaml"])
def test_the_three_files_differ_only_in_their_own_values(file: str) -> None:
    """So a correction of one file applies to all."""

    def without_what_is_its_own(role: Role) -> set[str]:
        port = CONFIGS[role].listen.rpartition(":")[2]
        own = ("mem_limit", "MemoryMax", "/srv/trilateral", "Tables, for user", "It writes into", "process.yaml, ")
        locking = ("swap space", "LimitMEMLOCK", "ulimits")
        reloading = ("systemctl reload",)  # A coordinator has no policy.
        text = re.sub(rf"\b({role}|{port})\b", "...", (FOLDER / role / file).read_text())
        return {line for line in text.splitlines() if not any(word in line for word in own + locking + reloading)}

    assert without_what_is_its_own(Role.HOST) == without_what_is_its_own(Role.GUEST)
    assert without_what_is_its_own(Role.HOST) == without_what_is_its_own(Role.COORDINATOR)


def test_the_deployment_guide_has_the_names_and_ports_of_the_configurations() -> None:
    text = (ROOT / "docs/deployment.md").read_text()
    for role in Role:
        (address,) = {config.peers[role].address for config in CONFIGS.values() if role in config.peers}
        assert address in text
    for name in ("process.yaml", "trilateral.service", "compose.yaml", "kubernetes.yaml", "job.yaml"):
        assert f"`{name}`" in text
