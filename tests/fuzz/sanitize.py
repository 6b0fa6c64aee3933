"""Build both kernels with sanitizers in a copy of the package, and run their tests and random calls there.

python tests/fuzz/sanitize.py [seconds]     (make sanitize)
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build/sanitized"
NATIVE = [Path("common/paillier/native"), Path("common/shares/native")]
FLAGS = ["-O1", "-g", "-frounding-math", "-fno-lto", "-fno-omit-frame-pointer", "-shared", "-fPIC"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build() -> None:
    """Copy what the tests need, and compile the extensions in the copy."""
    shutil.rmtree(BUILT, ignore_errors=True)
    for name in ("common", "tests", "src"):
        # src/trilateral/common is a link: the copy of it leads to the copy of the kernel.
        shutil.copytree(ROOT / name, BUILT / name, symlinks=True, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", BUILT)
    include = f"-I{sysconfig.get_paths()['include']}"
    for folder in NATIVE:
        sources = [str(path) for path in sorted((BUILT / folder).glob("*.c"))]
        output = str(BUILT / folder / "_kernel.abi3.so")
        subprocess.run(["gcc", *FLAGS, *WARNINGS, *SANITIZERS, include, *sources, "-o", output], check=True)


def run(*command: str) -> None:
    """Run Python in the copy with the sanitizers loaded first, ignoring memory that Python itself leaves allocated."""
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": f"{BUILT / 'src'}{os.pathsep}{BUILT}",
    }
    subprocess.run([sys.executable, *command], check=True, cwd=BUILT, env=environment)


TESTS = ["tests/unit/paillier/native", "tests/unit/shares/native"]
WHICH = (
    "from trilateral.common.paillier.native import _kernel as a;"
    "from trilateral.common.shares.native import _kernel as b;"
    " assert all(k.__file__.startswith({!r}) for k in (a, b))"
)

if __name__ == "__main__":
    build()
    run("-c", WHICH.format(str(BUILT)))
    run("-m", "pytest", "-x", "-o", "timeout=1200", "-p", "no:cacheprovider", *TESTS)
    run("tests/fuzz/fuzz_kernel.py", sys.argv[1] if len(sys.argv) > 1 else "60")
