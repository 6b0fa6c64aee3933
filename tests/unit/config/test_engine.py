from typing import Any

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.config.engine import EngineConfig, stays_private
from trilateral.common.config.settings import parse_settings

FILES = {"authorities": "a.pem", "certificate": "c.pem", "key": "k.pem"}
REMOTE = "tls://scheduler.example.org:8786"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "local"},
        {"kind": "dask", "scheduler": "tcp://127.0.0.1:8786"},
        {"kind": "dask", "scheduler": "tcp://[::1]:8786"},
        {"kind": "dask", "scheduler": "tcp://localhost:8786"},
        {"kind": "dask", "scheduler": REMOTE, **FILES},
    ],
)
def test_an_engine_here_or_with_tls_elsewhere_is_accepted(settings: dict[str, Any]) -> None:
    assert parse_settings(EngineConfig, settings, "file").kind == settings.get("kind", "local")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"kind": "dask", "scheduler": "tcp://10.0.0.5:8786"}, "scheduler: is not a loopback address, and without TLS"),
        ({"kind": "dask", "scheduler": "tcp://scheduler:8786"}, "scheduler: is not a loopback address"),
        ({"kind": "dask", "scheduler": "127.0.0.1:8786"}, "scheduler: expected the address of a Dask scheduler"),
        ({"kind": "dask", "scheduler": "inproc://1/2/3"}, "scheduler: expected the address of a Dask scheduler"),
        ({"kind": "dask"}, "`scheduler` is missing"),
        ({"kind": "dask", "scheduler": REMOTE}, "`authorities` is missing"),
        ({"kind": "dask", "scheduler": REMOTE, **FILES, "key": None}, "`key` is missing"),
        ({"kind": "dask", "scheduler": "tcp://127.0.0.1:8786", **FILES}, "certificates have no effect without TLS"),
        ({"scheduler": REMOTE}, "add `kind: dask`"),
        ({"kind": "ray"}, "kind: expected local or dask"),
    ],
)
def test_what_would_be_open_or_incomplete_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_settings(EngineConfig, settings, "file")
    assert text in str(raised.value)


def test_a_worker_is_private_with_tls_or_on_this_machine() -> None:
    assert stays_private("tls://10.0.0.5:40331")
    assert stays_private("tcp://127.0.0.1:40331")
    assert not stays_private("tcp://10.0.0.5:40331")
    assert not stays_private("ucx://10.0.0.5:40331")
