"""Which pages a configuration permits: none that strangers could read, and none that they could act through."""

from typing import Any

import pytest
from pydantic import ValidationError

from trilateral.common.config.live import differences, plain, with_live_settings
from trilateral.common.config.process import ProcessConfig, UiConfig

TLS = {"certificate": "own.pem", "key": "key.pem", "authorities": "authorities.pem"}
PEERS = {
    "host": {"address": "10.0.0.1:50051", "name": "host.example.org"},
    "coordinator": {"address": "10.0.0.3:50051", "name": "coordinator.example.org"},
}


def guest(ui: dict[str, Any], **settings: Any) -> ProcessConfig:
    base = {"role": "guest", "tls": TLS, "listen": "0.0.0.0:50051", "peers": PEERS, "state": "state"}
    return ProcessConfig.model_validate({**base, **settings, "ui": ui})


def plaintext(ui: dict[str, Any]) -> ProcessConfig:
    peers = {"host": "127.0.0.1:50051", "coordinator": "127.0.0.1:50053"}
    return guest(ui, tls=None, plaintext=True, listen="127.0.0.1:50052", peers=peers)


def test_there_is_no_page_by_default() -> None:
    assert guest({}).ui == UiConfig(listen=None, clients=[], allow_changes=False)


@pytest.mark.parametrize(
    "ui",
    [
        {"listen": "127.0.0.1:8080"},
        {"listen": "[::1]:8080"},
        {"listen": "0.0.0.0:8443", "clients": ["alice.example.org"]},
        {"listen": "127.0.0.1:8443", "clients": ["Alice.example.org"], "allow_changes": True},
    ],
)
def test_pages_that_only_the_own_organisation_opens_are_accepted(ui: dict[str, Any]) -> None:
    assert guest(ui).ui.clients == [name.lower() for name in ui.get("clients", [])]


@pytest.mark.parametrize(
    ("ui", "text"),
    [
        ({"listen": "0.0.0.0:8080"}, "not a loopback address: list in `clients`"),
        ({"listen": "127.0.0.1:8080", "allow_changes": True}, "list in `clients` whose certificates"),
        ({"clients": ["host.example.org"]}, "is the name of the host, another organisation"),
        ({"clients": ["COORDINATOR.example.org"]}, "is the name of the coordinator"),
        ({"clients": ["guest"]}, "guest is a role"),
        ({"clients": ["*.example.org"]}, "expected a host name or address"),
        ({"listen": "8080"}, "expected host:port"),
    ],
)
def test_pages_for_others_are_refused(ui: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text.replace("*", r"\*")):
        guest(ui)


def test_a_trial_without_tls_may_change_jobs_but_knows_no_certificates() -> None:
    assert plaintext({"listen": "127.0.0.1:8080", "allow_changes": True}).ui.allow_changes
    with pytest.raises(ValidationError, match="no certificates with `plaintext: true`"):
        plaintext({"listen": "127.0.0.1:8080", "clients": ["alice.example.org"]})


def test_the_page_of_a_coordinator_needs_a_port_to_call() -> None:
    settings = {
        "role": "coordinator",
        "plaintext": True,
        "listen": "127.0.0.1:0",
        "peers": {"host": "127.0.0.1:50051", "guest": "127.0.0.1:50052"},
        "state": "state",
        "ui": {"listen": "127.0.0.1:8080"},
    }
    with pytest.raises(ValidationError, match="leaves its port open"):
        ProcessConfig.model_validate(settings)


def test_who_may_open_the_page_changes_while_the_process_runs() -> None:
    running = guest({"listen": "127.0.0.1:8443", "clients": ["alice.example.org"], "allow_changes": True})
    changed = guest({"listen": "127.0.0.1:9443", "clients": ["bob.example.org"]})
    ui = with_live_settings(running, changed).ui
    assert ui == UiConfig(listen="127.0.0.1:8443", clients=["bob.example.org"], allow_changes=False)
    found = {each.setting: each.is_live for each in differences(plain(running), plain(changed))}
    assert found == {"ui.listen": False, "ui.clients": True, "ui.allow_changes": True}
