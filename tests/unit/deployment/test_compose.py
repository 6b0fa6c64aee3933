"""The image and docker-compose.yml fit each other and the configurations, and keep three organisations apart.

`make lint` checks the schema of the Compose file and the style of the Dockerfile.
"""

import fnmatch
import re
import shlex
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import ROOT, Service, instructions, read_compose, read_image, read_services
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.load import load_job, load_process_config
from trilateral.common.config.process import ProcessConfig

IMAGE = read_image()
SERVICES = read_services()
SERVERS = {role: SERVICES[role] for role in Role}
COMPOSE = read_compose(ROOT / "docker-compose.yml")


def config_of(service: Service) -> ProcessConfig:
    """Return the configuration that the command of a service names."""
    named = service.command[service.command.index("--config") + 1]
    (source,) = (mount.source for mount in service.mounts if mount.target == named)
    return load_process_config(ROOT / source, {})


def paths_in(config: ProcessConfig) -> dict[str, list[Path]]:
    assert config.tls is not None
    return {
        "certs": [config.tls.certificate, config.tls.key, config.tls.authorities],
        "state": [config.state],
        "tables": [dataset.path for dataset in config.datasets.values()],
    }


# --- the image


def test_the_image_runs_as_a_numeric_user_other_than_root() -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", IMAGE.user)
    assert {user for user, _ in IMAGE.owned.values()} == {int(IMAGE.user.partition(":")[0])}
    assert {mode for _, mode in IMAGE.owned.values()} == {0o700}


def test_the_base_of_the_image_is_pinned_and_all_packages_are_locked_wheels() -> None:
    steps = instructions(ROOT / "Dockerfile")
    (base,) = {rest.split()[0] for word, rest in steps if word == "FROM"} - {"python"}
    # Debian 12 has glibc 2.36, and one wheel needs 2.35.
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", base)
    installs = [rest for word, rest in steps if word == "RUN" and "pip" in rest]
    locked = [rest for rest in installs if "--only-binary :all: --require-hashes -r requirements.txt" in rest]
    assert len(locked) == 1


def test_the_image_fails_to_build_without_the_kernel() -> None:
    compiled = [rest for word, rest in instructions(ROOT / "Dockerfile") if word == "RUN" and "pip wheel" in rest]
    assert len(compiled) == 1
    assert compiled[0].endswith(
        '&& /opt/trilateral/bin/python -I -c "import trilateral.common.curve25519.native._kernel,'
        ' trilateral.common.paillier.native._kernel, trilateral.common.shares.native._kernel"'
    )


def test_the_kernel_is_compiled_for_any_machine() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = settings["tool"]["setuptools"]["ext-modules"]
    assert len(modules) == 3
    assert not [flag for module in modules for flag in module["extra-compile-args"] if flag.startswith("-m")]


def test_the_image_copies_exactly_the_files_that_it_needs() -> None:
    copied = {
        word
        for step, rest in instructions(ROOT / "Dockerfile")
        if step == "COPY" and not rest.startswith("--from")
        for word in shlex.split(rest)[:-1]
    }
    linked = {link.readlink().name for link in (ROOT / "src/trilateral").iterdir() if link.is_symlink()}
    assert linked == {"common", "host_party", "guest_party", "coordinator"}
    assert {"src", *linked} <= copied
    assert all((ROOT / name).exists() for name in copied)
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert admitted == copied


# --- services


@pytest.mark.parametrize("role", list(Role))
def test_each_server_serves_its_role_with_a_configuration_that_loads(role: Role) -> None:
    service = SERVERS[role]
    assert service.command == ["trilateral", "serve", role, "--config", "/etc/trilateral/process.yaml"]
    config = config_of(service)
    assert config.role is role
    assert config.listen.startswith("0.0.0.0:")


@pytest.mark.parametrize("role", list(Role))
def test_the_files_of_a_configuration_are_mounted_and_only_the_state_is_writable(role: Role) -> None:
    volumes = {mount.target: mount for mount in SERVERS[role].mounts if mount.is_volume}
    for kind, paths in paths_in(config_of(SERVERS[role])).items():
        for path in paths:
            (target,) = (each for each in volumes if path.is_relative_to(each))
            assert volumes[target].source == f"{role}-{kind}"
            assert volumes[target].read_only == (kind != "state")


def test_each_server_has_only_the_files_of_its_own_organisation() -> None:
    for one, other in combinations(Role, 2):
        shared = {mount.source for mount in SERVERS[one].mounts} & {mount.source for mount in SERVERS[other].mounts}
        assert not shared


def test_the_one_shot_services_write_the_files_that_the_servers_read() -> None:
    assert SERVICES["certificates"].command == [
        "trilateral",
        "certs",
        "development",
        "--replace",
        "--out",
        "/trial/certs",
    ]
    assert {mount.target: mount.source for mount in SERVICES["certificates"].mounts} == {
        f"/trial/certs/{role}": f"{role}-certs" for role in Role
    }
    assert SERVICES["tables"].command == ["trilateral", "data", "demo", "--out", "/trial/tables"]
    assert {mount.target: mount.source for mount in SERVICES["tables"].mounts} == {
        f"/trial/tables/{role}": f"{role}-tables" for role in PARTIES
    }
    for service in SERVERS.values():
        assert set(service.depends_on.items()) == {
            (name, "service_completed_successfully") for name in ("certificates", "tables")
        }


def test_each_pair_of_servers_has_its_own_network_and_names() -> None:
    for one, other in combinations(Role, 2):
        (network,) = SERVERS[one].networks & SERVERS[other].networks
        assert {role for role in Role if network in SERVERS[role].networks} == {one, other}
        assert COMPOSE["networks"][network] == {"internal": True}
    for role, service in SERVERS.items():
        assert "ports" not in service.settings
        for other, peer in config_of(service).peers.items():
            listen = config_of(SERVERS[other]).listen
            assert peer.address == listen.replace("0.0.0.0", other)
            assert peer.certificate_name == f"{other}.trilateral.test"
        assert role == service.name


@pytest.mark.parametrize("role", list(Role))
def test_the_health_check_runs_the_images_command_with_the_servers_configuration(role: Role) -> None:
    service = SERVERS[role]
    assert service.health_check == IMAGE.health_check
    assert service.health_check[-1] == service.command[-1]


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_containers_have_no_more_rights_than_they_need(service: Service) -> None:
    settings = service.settings
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert settings["init"] is True
    assert settings["mem_limit"]
    assert settings["pids_limit"]
    if service.name == "result":  # it writes into a folder of the user, as the owner of that folder
        assert (service.user, service.capabilities) == ("0:0", ["CHOWN", "DAC_OVERRIDE"])
        assert settings["network_mode"] == "none"
    else:
        assert (service.user, service.capabilities) == (IMAGE.user, [])


@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_a_new_volume_belongs_to_the_user_wherever_it_is_mounted_first(service: Service) -> None:
    assert {mount.target for mount in service.mounts if mount.is_volume} <= set(IMAGE.owned)
    assert {mount.source for mount in service.mounts if mount.is_volume} <= set(COMPOSE["volumes"])


def test_the_demo_waits_for_healthy_servers_and_the_result_for_the_demo() -> None:
    demo, result = SERVICES["demo"], SERVICES["result"]
    assert demo.depends_on == dict.fromkeys(Role, "service_healthy")
    assert demo.networks == {"guest-coordinator"}
    assert demo.settings["profiles"] == result.settings["profiles"] == ["demo"]
    job = load_job(ROOT / "configs/compose/job.yaml")
    assert job.name == "demo"
    assert all(job.dataset in config_of(SERVERS[role]).datasets for role in PARTIES)
    assert result.depends_on == {"demo": "service_completed_successfully"}
    assert {mount.source for mount in result.mounts} == {*(f"{role}-state" for role in Role), "./compose-result"}


def test_the_result_folder_is_in_the_repository_and_its_content_is_not() -> None:
    *_, everything, but = (ROOT / "compose-result/.gitignore").read_text().splitlines()
    assert fnmatch.fnmatch("model.json", everything)
    assert but == "!.gitignore"


# --- monitoring


def monitored(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = COMPOSE["services"][name]
    assert settings["profiles"] == ["monitoring"]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"]
    assert re.fullmatch(r"[a-z/]+:v?[0-9.]+", settings["image"])
    return settings


def mounted(settings: dict[str, Any], target: str) -> Path:
    source: str
    (source,) = (each.split(":")[0] for each in settings["volumes"] if each.split(":")[1] == target)
    return ROOT / source


def test_prometheus_reaches_the_metrics_of_all_three() -> None:
    prometheus = monitored("prometheus")
    path = mounted(prometheus, "/etc/prometheus/prometheus.yml")
    assert "--config.file=/etc/prometheus/prometheus.yml" in prometheus["command"]
    config = yaml.safe_load(path.read_text())
    (scraped,) = config["scrape_configs"]
    targets = {target for each in scraped["static_configs"] for target in each["targets"]}
    listens = {role: config_of(service).metrics.listen for role, service in SERVERS.items()}
    assert targets == {str(listen).replace("0.0.0.0", role) for role, listen in listens.items()}
    for service in SERVERS.values():
        assert service.networks & set(prometheus["networks"])
    for rules in config["rule_files"]:
        assert mounted(prometheus, f"/etc/prometheus/{rules}").exists()


def test_grafana_has_the_dashboard_and_reaches_prometheus_and_serves_only_this_machine() -> None:
    grafana = monitored("grafana")
    provisioning = mounted(grafana, "/etc/grafana/provisioning")
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert set(grafana["networks"]) & set(monitored("prometheus")["networks"]) == {"dashboards"}
    (provider,) = yaml.safe_load((provisioning / "dashboards/trilateral.yml").read_text())["providers"]
    folder = mounted(grafana, provider["options"]["path"])
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (folder / home.name).exists()
    assert str(home.parent) == provider["options"]["path"]
    assert all(port.startswith("127.0.0.1:") for port in grafana["ports"])
    assert not {each for service in SERVERS.values() for each in service.networks} & set(grafana["networks"])


def test_the_page_of_the_guest_is_served_to_this_machine_with_the_guests_own_certificate() -> None:
    page, guest = monitored("page"), config_of(SERVERS[Role.GUEST])
    assert all(port.startswith("127.0.0.1:") for port in page["ports"])
    (inner,) = set(page["networks"]) & SERVERS[Role.GUEST].networks
    assert COMPOSE["networks"][inner] == {"internal": True}
    assert not set(page["networks"]) & (SERVERS[Role.HOST].networks | SERVERS[Role.COORDINATOR].networks)
    assert {"guest-certs:/etc/trilateral/certs:ro"} == {each for each in page["volumes"] if "certs" in each}
    assert page["user"] == IMAGE.user
    assert guest.ui.clients == ["guest.trilateral.test"]
    assert not guest.ui.allow_changes
    conf = mounted(page, "/etc/trilateral/page.conf").read_text()
    assert guest.ui.listen == "0.0.0.0:8080"
    assert "set $page guest:8080;" in conf
    assert "proxy_ssl_verify on;" in conf
    assert "server_name localhost 127.0.0.1 [::1];" in conf
    assert conf.count("listen 8080 default_server;\n        return 421;") == 1
