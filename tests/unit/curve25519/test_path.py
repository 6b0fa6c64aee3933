"""The choice between the kernel and libsodium."""

import logging
import sys

import pytest

from trilateral.common.curve25519 import path


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(path._Choice, "kernel", None)
    caplog.set_level(logging.INFO)


def test_the_kernel_is_chosen_once_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "obstacle", lambda: "")
    assert path.uses_kernel()
    assert path.uses_kernel()
    assert caplog.messages == ["arithmetic of alignments: the kernel, with AVX-512 IFMA"]


def test_libsodium_can_be_chosen(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "obstacle", lambda: "")
    assert not path.choose_curve_arithmetic(portable=True)
    assert not path.uses_kernel()
    assert caplog.messages == ["arithmetic of alignments: libsodium, as chosen"]


def test_without_a_compiled_kernel_libsodium_computes_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trilateral.common.curve25519 import native

    monkeypatch.setitem(sys.modules, "trilateral.common.curve25519.native._kernel", None)
    monkeypatch.delattr(native, "_kernel", raising=False)
    assert not path.uses_kernel()
    (line,) = caplog.messages
    assert "because the kernel was not built" in line


def test_without_the_instructions_libsodium_computes_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trilateral.common.curve25519.native import _kernel

    monkeypatch.setattr(_kernel, "available", 0)
    assert not path.uses_kernel()
    (line,) = caplog.messages
    assert line.endswith("because the processor has no AVX-512 with its integer multiply-add (IFMA)")
