"""A user who may not use a file learns whose it is and what to run. A peer learns neither."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trilateral.common.base.permissions import explain
from trilateral.common.base.roles import Role
from trilateral.common.base.tracebacks import where
from trilateral.common.rpc.errors import public_error

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def as_nobody(code: str, path: Path) -> str:
    """Run a program that calls `become_nobody` once its modules are loaded, and return what it prints."""
    command = [sys.executable, "-c", BECOME_NOBODY + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.strip()


# Python itself may be installed where another user cannot read it.
BECOME_NOBODY = f"""
import os, sys
from pathlib import Path
def become_nobody():
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
"""
READ = """
from trilateral.common.base.permissions import explain
become_nobody()
try:
    Path(sys.argv[1]).read_bytes()
except OSError as error:
    print(explain(error, Path(sys.argv[1])))
"""
WRITE = READ.replace("read_bytes()", "write_bytes(b'')")


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that every user may enter."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


@needs_root
def test_a_file_of_root_is_shown_with_its_owner_and_stays_with_root(open_path: Path) -> None:
    settings = open_path / "process.yaml"
    settings.touch(mode=0o600)
    answer = as_nobody(READ, settings)
    assert answer.startswith(
        f"Permission denied: {settings} belongs to root, and this process runs as nobody: as root, let user nobody use "
        "it, for example by its group;"
    )
    assert "`" not in answer


@needs_root
def test_whoever_is_not_the_user_of_the_process_is_told_to_become_that_user(open_path: Path) -> None:
    secret = open_path / "key.pem"
    secret.touch(mode=0o600)
    os.chown(secret, 1, 1)
    answer = as_nobody(READ, secret)
    assert f"{secret} belongs to daemon, and this process runs as nobody: run this command as the server's user, " in (
        answer
    )
    assert "`sudo --user daemon ...`" in answer
    assert "chown" not in answer


@needs_root
@pytest.mark.parametrize(("owner", "group"), [(0, 1), (1, 1), (1, 0)])
def test_a_folder_that_may_not_be_entered_is_shown_and_stays_with_its_owner_and_group(
    open_path: Path, owner: int, group: int
) -> None:
    """The folder of the settings belongs to root and to the group of the service."""
    folder = open_path / "my settings"
    folder.mkdir()
    (folder / "process.yaml").touch()
    os.chown(folder, owner, group)
    folder.chmod(0o1770)
    answer = as_nobody(READ, folder / "process.yaml")
    assert f"{folder} belongs to {'daemon' if owner else 'root'}" in answer
    assert answer.endswith(
        f"run this command as the server's user, such as `sudo --user daemon ...`; or let user nobody into {folder}"
    )


@needs_root
def test_nobody_is_told_to_open_a_folder_of_root_alone(open_path: Path) -> None:
    folder = open_path / "root"
    folder.mkdir(mode=0o700)
    (folder / "table.csv").touch()
    answer = as_nobody(READ, folder / "table.csv")
    assert answer.endswith(
        f"{folder} belongs to root, and this process runs as nobody: use a folder that this user has access to"
    )


@needs_root
def test_a_folder_of_another_user_that_may_not_be_written_stays_with_that_user(open_path: Path) -> None:
    folder = open_path / "copies"
    folder.mkdir(mode=0o755)
    os.chown(folder, 1, 1)
    answer = as_nobody(WRITE, folder / "copy.tar")
    assert answer.endswith(f"`sudo --user daemon ...`; or let user nobody write to {folder}")


@needs_root
def test_ones_own_file_needs_another_mode(open_path: Path) -> None:
    own = open_path / "own"
    own.touch()
    os.chown(own, NOBODY, NOBODY)
    own.chmod(0)
    answer = as_nobody(READ, own)
    assert answer.endswith(f"run `chmod u+rw {own}`")
    subprocess.run(answer.split("`")[1], shell=True, check=True)
    assert as_nobody(READ, own) == ""


def test_other_reasons_are_those_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "none").read_bytes()
    assert explain(missing.value, tmp_path / "none") == "No such file or directory"


def test_a_peer_learns_neither_path_nor_owner_and_the_log_has_both(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path))
    assert str(public_error(error, Role.HOST)) == ("the host may not use one of its own files; see the log of the host")
    assert f"PermissionError: Permission denied: {tmp_path} belongs to" in where(error)


MODEL = """
from trilateral.common.base.errors import TrilateralError, notes
from trilateral.common.data.model.model_file import load_model
from trilateral.common.data.tables.table_file import open_table
become_nobody()
for read in (load_model, lambda path: open_table(path).names):
    try:
        read(Path(sys.argv[1]))
    except TrilateralError as error:
        print(error, *notes(error))
"""


@needs_root
def test_a_model_and_a_table_in_a_folder_that_root_has_restored(open_path: Path) -> None:
    folder = open_path / "customers-1"
    folder.mkdir(mode=0o700)
    (folder / "x.csv").touch()
    model, table = as_nobody(MODEL, folder / "x.csv").splitlines()
    belongs = f"{folder} belongs to root"
    assert model.startswith(f"the model file {folder}/x.csv cannot be read: Permission denied: {belongs}")
    assert table.startswith("this process has no permission to read x.csv: change the owner or mode of the file")
    assert belongs in table
