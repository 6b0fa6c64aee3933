"""Mathematics and state machines load no network, table library or database; import-linter guards files and `os`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPURE = ["grpc", "google", "pandas", "pyarrow", "sqlite3", "sklearn", "scipy", "phe", "distributed"]
IMPURE += ["trilateral.common.pb"]
FOLDERS = ["common/curve25519", "common/paillier", "common/protocol", "common/shares", "coordinator/optimisers"]
FOLDERS += ["coordinator/paillier", "coordinator/searches", "coordinator/shares"]
MODULES = [
    "common/compute/engine.py",
    "common/compute/local.py",
    "common/compute/ordered.py",
    "coordinator/machine.py",
    "coordinator/rounds.py",
    "coordinator/computation.py",
    "coordinator/plan.py",
    "coordinator/training.py",
    "coordinator/numpy_training.py",
    "guest_party/machine.py",
    "guest_party/arithmetic.py",
    "guest_party/holdout.py",
    "guest_party/loss.py",
    "guest_party/shares.py",
    "host_party/machine.py",
    "host_party/arithmetic.py",
    "host_party/shares.py",
]
NOT_PURE = {"common/paillier/reference.py"}
"""It is phe's arithmetic, and loaded only for a job that asks for it."""

# The package itself is left out: it brings the whole public API with it.
PROGRAM = """
import importlib, sys, types
impure, source, *names = sys.argv[1:]
package = sys.modules["trilateral"] = types.ModuleType("trilateral")
package.__path__ = [source]
for name in names:
    importlib.import_module(name)
    loaded = [one for one in impure.split() if any(each == one or each.startswith(one + ".") for each in sys.modules)]
    if loaded:
        sys.exit(f"{name} loads {loaded}")
"""


def pure_modules() -> list[str]:
    files = [ROOT / module for module in MODULES]
    for folder in FOLDERS:
        files += sorted((ROOT / folder).rglob("*.py"))
    names = [file.relative_to(ROOT).as_posix() for file in files]
    return ["trilateral." + name[:-3].replace("/", ".") for name in names if name not in NOT_PURE]


def test_pure_modules_load_nothing_impure() -> None:
    names = pure_modules()
    assert len(names) > 40
    command = [sys.executable, "-c", PROGRAM, " ".join(IMPURE), str(ROOT / "src/trilateral"), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
