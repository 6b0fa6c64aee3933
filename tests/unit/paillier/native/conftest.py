"""Tests with the fixture `path` run once on each path of the kernel, and once on `ifma` in plain C."""

import sys
from types import ModuleType

import pytest

from tests.support import emulated_kernel
from tests.support.emulated_kernel import EMULATED, PATHS
from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native import path as paths
from trilateral.common.paillier.native.modulus import KernelPath


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = emulated_kernel.shared_folder(tmp_path_factory.getbasetemp(), "emulated")
    return emulated_kernel.load(emulated_kernel.build(folder))


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelPath:
    """Make the process use a path of the kernel, and return its name."""
    name: KernelPath = "ifma" if request.param == EMULATED else request.param
    if request.param == EMULATED:
        kernel: ModuleType = request.getfixturevalue("emulated")
        for module in list(sys.modules.values()):
            if getattr(module, "_kernel", None) is _kernel:
                monkeypatch.setattr(module, "_kernel", kernel)
    monkeypatch.setattr(paths._Choice, "path", name)
    return name
