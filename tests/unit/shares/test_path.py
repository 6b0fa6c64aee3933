"""The choice between the kernel and numpy."""

import logging
import sys

import pytest

from trilateral.common.shares import path


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path._Choice, "level", None)


def test_the_best_level_is_chosen_once_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert path.shares_level() == path.shares_level() == path.best_level()[0] > path.NUMPY
    (line,) = caplog.messages
    assert line in {"arithmetic of shares: the kernel, with AVX-512", "arithmetic of shares: the kernel, with AVX2"}


def test_numpy_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert path.choose_shares_arithmetic(portable=True) == path.shares_level() == path.NUMPY
    assert caplog.messages == ["arithmetic of shares: numpy, as chosen"]


def test_without_a_compiled_kernel_numpy_computes_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trilateral.common.shares import native

    monkeypatch.setitem(sys.modules, "trilateral.common.shares.native._kernel", None)
    monkeypatch.delattr(native, "_kernel")
    assert path.shares_level() == path.NUMPY
    (line,) = caplog.messages
    assert line.startswith("arithmetic of shares: numpy, about forty times slower, because it was not built")


def test_without_the_instructions_numpy_computes_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trilateral.common.shares.native import _kernel

    monkeypatch.setattr(_kernel, "level", 0)
    assert path.shares_level() == path.NUMPY
    (line,) = caplog.messages
    assert line.endswith("because the processor has no AVX2 or no AES instructions")
