"""The wheel: what it puts into site-packages, and that it works there."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDED = [
    "trilateral/__init__.py",
    "trilateral/py.typed",
    "trilateral/aio.py",
    "trilateral/cli/main.py",
    "trilateral/client/session.py",
    "trilateral/demo/files.py",
    "trilateral/common/pb/v1/jobs_pb2.pyi",
    "trilateral/common/report/templates/report.html",
    "trilateral/coordinator/server.py",
    "trilateral/guest_party/server.py",
    "trilateral/host_party/server.py",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git has, as whoever clones the repository builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(clone),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (made,) = folder.glob("*.whl")
    return made


def test_nothing_but_trilateral_is_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    (info,) = tops - {"trilateral"}
    assert info.startswith("trilateral-")
    assert info.endswith(".dist-info")
    assert set(NEEDED) <= set(names)
    for package in ("curve25519", "paillier", "shares"):
        kernel = f"trilateral/common/{package}/native/_kernel"
        assert any(name.startswith(kernel) and name.endswith(".so") for name in names)
    assert not any("tests" in name or name.endswith((".c", ".h")) for name in names)


def test_an_installed_wheel_works_away_from_the_sources(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # What the wheel depends on comes from the environment of these tests, after the wheel itself.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    code = (
        f"import sys; sys.path.append({dependencies!r}); import trilateral; print(trilateral.__file__);"
        " [getattr(trilateral, name) for name in trilateral.__all__];"
        " from trilateral.common.paillier.native import path; print(path)"
    )
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
