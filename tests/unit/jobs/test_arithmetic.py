import os

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.curve25519 import path as curve_path
from trilateral.common.jobs.arithmetic import VARIABLE, processors, use_arithmetic
from trilateral.common.paillier.native import path
from trilateral.common.paillier.native.threads import set_threads, thread_count
from trilateral.common.shares import path as shares_path


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path._Choice, "path", None)
    monkeypatch.setattr(shares_path._Choice, "level", None)
    monkeypatch.setattr(curve_path._Choice, "kernel", None)


def test_the_environment_chooses_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "gmpy2")
    assert use_arithmetic() == "gmpy2" == path.arithmetic_path()
    assert shares_path.shares_level() == shares_path.NUMPY
    assert not curve_path.uses_kernel()


def test_without_a_choice_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert use_arithmetic() == ("gmpy2" if path.obstacle() else path.kernel_path())
    assert shares_path.shares_level() == shares_path.best_level()[0]
    assert curve_path.uses_kernel() is not bool(curve_path.obstacle())


def test_an_unknown_arithmetic_is_refused_by_the_name_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: there is no arithmetic 'cuda': set ifma, avx2 or gmpy2"):
        use_arithmetic()


def test_the_arithmetic_has_the_given_threads_or_one_per_processor() -> None:
    before = thread_count()
    try:
        use_arithmetic(3)
        assert thread_count() == 3
        use_arithmetic()
        assert thread_count() == processors() == len(os.sched_getaffinity(0))
    finally:
        set_threads(before)
