"""Kernels with IFMA in plain C, which run on any processor that runs a kernel at all."""

import fcntl
import os
import subprocess
import sysconfig
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from trilateral.common.paillier.native import _kernel
from trilateral.common.paillier.native.modulus import FORMS

EMULATED = "ifma-emulated"
PATHS = [*(path for path in FORMS if path in _kernel.paths), EMULATED]
"""The paths that run here, and this kernel's."""

SOURCES = Path(__file__).parents[2] / "common/paillier/native"
FLAGS = ["-O1", "-DEMULATE_IFMA", "-Wno-psabi", "-frounding-math", "-fno-lto", "-shared", "-fPIC"]


def build(folder: Path, kernel: Path = SOURCES) -> Path:
    """Compile a kernel into a folder, once for all processes that share it, and return its path."""
    built = folder / "_kernel.abi3.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            include = f"-I{sysconfig.get_paths()['include']}"
            sources = [str(path) for path in sorted(kernel.glob("*.c"))]
            subprocess.run(["gcc", *FLAGS, include, *sources, "-o", str(built)], check=True)
    return built


def load(built: Path, name: str = _kernel.__name__) -> ModuleType:
    """Import a kernel beside the installed one of this name."""
    loader = ExtensionFileLoader(name, str(built))
    module = module_from_spec(ModuleSpec(name, loader, origin=str(built)))
    loader.exec_module(module)
    return module


def shared_folder(base: Path, name: str) -> Path:
    """Make a folder that all processes of a run of the tests share.

    Args:
        base: the base of this process's temporary folders.
        name: its name.
    """
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder
