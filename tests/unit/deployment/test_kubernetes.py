"""The Kubernetes manifests of configs/three-hosts fit the configurations, and the copying of their files works."""

import re
import signal
import stat
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import ROOT, read_image
from tests.support.waiting import eventually_in_thread
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.load import load_process_config

FOLDER = ROOT / "configs/three-hosts"
CONFIGS = {role: load_process_config(FOLDER / role / "process.yaml", {}) for role in Role}


def manifests(role: Role) -> dict[str, Any]:
    """Return the manifests of a role by their kind."""
    found = {each["kind"]: each for each in yaml.safe_load_all((FOLDER / role / "kubernetes.yaml").read_text())}
    assert all(each["metadata"]["name"] == f"trilateral-{role}" for each in found.values())
    return found


def pod(role: Role) -> dict[str, Any]:
    spec: dict[str, Any] = manifests(role)["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def containers(role: Role) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the container that copies the files, and the server's."""
    (files,), (server,) = pod(role)["initContainers"], pod(role)["containers"]
    return files, server


def port_of(role: Role) -> int:
    return int(CONFIGS[role].listen.rpartition(":")[2])


@pytest.mark.parametrize("role", list(Role))
def test_the_container_runs_the_command_of_the_service_in_the_image_of_this_release(role: Role) -> None:
    files, server = containers(role)
    config = "/etc/trilateral/process.yaml"
    assert server["args"] == ["serve", role, "--config", config]
    assert {files["image"], server["image"]} == {f"registry.example.org/trilateral:{version('trilateral')}"}
    for probe in ("startupProbe", "readinessProbe"):
        assert server[probe]["exec"]["command"] == read_image().health_check
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in server["volumeMounts"]}
    tables = {"/srv/trilateral": True} if role in PARTIES else {}
    assert mounts == {"/etc/trilateral": True, "/var/lib/trilateral": False, "/tmp": False} | tables


@pytest.mark.parametrize("role", list(Role))
def test_service_and_network_policy_admit_the_two_others_and_nothing_else(role: Role) -> None:
    found = manifests(role)
    assert [each["port"] for each in found["Service"]["spec"]["ports"]] == [port_of(role)]
    assert [each["containerPort"] for each in containers(role)[1]["ports"]] == [port_of(role)]
    policy = found["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = policy["ingress"]
    assert [each["port"] for each in ingress["ports"]] == ["grpc"]
    names, *peers = policy["egress"]
    assert {each["port"] for each in names["ports"]} == {53}
    assert {each["ports"][0]["port"] for each in peers} == {port_of(peer) for peer in Role if peer is not role}
    assert ingress["from"] == [each["to"][0] for each in peers]


@pytest.mark.parametrize("role", list(Role))
def test_the_pod_keeps_to_the_restricted_pod_security_standard_and_needs_no_token(role: Role) -> None:
    spec = pod(role)
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    user, group = map(int, read_image().user.split(":"))
    security = spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, user, group)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(role):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} == {"projected", "emptyDir"}


@pytest.mark.parametrize("role", list(Role))
def test_variables_of_service_links_are_off_and_would_not_be_taken_for_settings(role: Role) -> None:
    assert pod(role)["enableServiceLinks"] is False
    variable = f"TRILATERAL_{role.upper()}_SERVICE_HOST"
    path = FOLDER / role / "process.yaml"
    assert load_process_config(path, {variable: "10.0.0.1"}) == load_process_config(path, {})


def test_the_three_manifests_differ_only_in_their_own_values() -> None:
    def without_what_is_its_own(role: Role) -> set[str]:
        own = ("cidr:", "port: 5005", "memory: ", "tables", "job.yaml", "storage: 10Gi")
        text = re.sub(rf"\b({role}|{role.upper()}|{port_of(role)})(?=\b|_)", "...", "".join(lines(role)))
        text = text.replace(f"TRILATERAL_{role.upper()}_", "TRILATERAL_..._")
        return {line for line in text.splitlines() if not any(word in line for word in own)}

    def lines(role: Role) -> list[str]:
        return (FOLDER / role / "kubernetes.yaml").read_text().splitlines(keepends=True)

    assert without_what_is_its_own(Role.HOST) == without_what_is_its_own(Role.GUEST)
    assert without_what_is_its_own(Role.HOST) == without_what_is_its_own(Role.COORDINATOR)


def test_the_files_are_copied_for_their_user_alone_and_again_when_they_change(tmp_path: Path) -> None:
    """As in a pod: the given files can be read by the group, and are links that change all at once."""
    given, files = tmp_path / "given", tmp_path / "files"
    files.mkdir()
    for content in ("one", "two"):
        folder = given / f"..{content}"
        folder.mkdir(parents=True)
        for name in ("key.pem", "process.yaml"):
            (folder / name).write_text(f"{name} {content}")
            (folder / name).chmod(0o440)
    for name in ("key.pem", "process.yaml"):
        (given / name).symlink_to(f"..data/{name}")

    def give(content: str) -> None:
        (given / "..new").symlink_to(f"..{content}")
        (given / "..new").rename(given / "..data")

    give("one")
    copying, _ = containers(Role.GUEST)
    (script,) = copying["args"]
    script = (
        script.replace("/run/given", str(given)).replace("/etc/trilateral", str(files)).replace("sleep 5", "sleep 0")
    )
    with subprocess.Popen([*copying["command"], script]) as process:
        try:
            eventually_in_thread((files / ".complete").exists)
            assert {path.name for path in files.iterdir()} == {"key.pem", "process.yaml", ".complete"}
            assert all(stat.S_IMODE((files / name).stat().st_mode) == 0o600 for name in ("key.pem", "process.yaml"))
            give("two")
            eventually_in_thread(lambda: (files / "process.yaml").read_text() == "process.yaml two")
            eventually_in_thread(lambda: (files / "key.pem").read_text() == "key.pem two")
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
