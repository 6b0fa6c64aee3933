"""A copy of the package in which tests run with kernels that are compiled in another way."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CURVE, PAILLIER, SHARES = (Path("common", name, "native") for name in ("curve25519", "paillier", "shares"))
KERNELS = (CURVE, PAILLIER, SHARES)
_ALWAYS = ["-frounding-math", "-fno-lto", "-shared", "-fPIC"]
_CHECK = "import importlib, sys; assert importlib.import_module(sys.argv[1]).__file__.startswith(sys.argv[2])"


class KernelCopy:
    """A copy of the package and its tests.

    Args:
        folder: where the copy goes. What is there is removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("common", "tests", "src"):
            # src/trilateral/common is a link: the copy of it leads to the copy of the kernel.
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def compile(self, kernel: Path, compiler: str, flags: Sequence[str]) -> None:
        """Compile one of the kernels in place of the one that is there."""
        output, include = self.folder / kernel / "_kernel.abi3.so", f"-I{sysconfig.get_paths()['include']}"
        sources = [str(path) for path in sorted((self.folder / kernel).glob("*.c"))]
        subprocess.run([compiler, *_ALWAYS, *flags, include, *sources, "-o", str(output)], check=True)

    def run(self, *command: str, libraries: Sequence[str] = (), quiet: bool = False) -> bool:
        """Run Python in the copy.

        Args:
            command: arguments of Python.
            libraries: to be loaded first.
            quiet: do not print what it prints.

        Returns:
            Whether it succeeded.
        """
        environment = self._environment | ({"LD_PRELOAD": " ".join(libraries)} if libraries else {})
        for kernel in KERNELS:
            module = ".".join(("trilateral", *kernel.parts, "_kernel"))
            check = [sys.executable, "-c", _CHECK, module, str(self.folder)]
            subprocess.run(check, check=True, cwd=self.folder, env=environment)
        output = subprocess.DEVNULL if quiet else None
        done = subprocess.run([sys.executable, *command], check=False, cwd=self.folder, env=environment, stdout=output)
        return done.returncode == 0
