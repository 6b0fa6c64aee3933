"""A state folder belongs to one role, and to one process at a time."""

import errno
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trilateral.common.base.errors import ConfigError
from trilateral.common.base.roles import Role
from trilateral.common.process.state_folder import held_state, holder, how_to_make


def test_it_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    with held_state(folder, Role.HOST):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("role", [Role.HOST, Role.GUEST])
def test_a_second_process_is_refused_with_the_first_ones_name(role: Role, tmp_path: Path) -> None:
    with held_state(tmp_path, Role.HOST):
        with pytest.raises(ConfigError) as refused, held_state(tmp_path, role):
            pass
        assert str(refused.value) == (
            f"state: the folder {tmp_path} is in use by the host, process {os.getpid()}: give each process its own"
        )


def test_it_is_free_again_for_the_same_role_only(tmp_path: Path) -> None:
    for _ in range(2):
        with held_state(tmp_path, Role.HOST):
            pass
    with (
        pytest.raises(ConfigError, match="has the files of the host: give the guest its own"),
        held_state(tmp_path, Role.GUEST),
    ):
        pass


def unknown_user(number: int) -> None:
    raise KeyError(number)


@pytest.mark.parametrize("below", ["trilateral", "trilateral/host/state"])
def test_a_folder_that_this_user_may_not_make_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    folder, make = tmp_path / below, Path.mkdir

    def refuse(path: Path, *given: Any, **options: Any) -> None:
        if tmp_path in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *given, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    user = pwd.getpwuid(os.geteuid()).pw_name
    with (
        pytest.raises(
            ConfigError,
            match="cannot be written: Permission denied: start the systemd unit, which makes it, or run as root "
            f"`install --directory --mode 0700 --owner {user} {folder}`",
        ),
        held_state(folder, Role.HOST),
    ):
        pass
    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    assert f"--owner {os.geteuid()} " in how_to_make(folder)


def test_asking_for_its_holder_neither_locks_nor_makes_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert holder(folder, Role.HOST) is None
    assert not folder.exists()
    with held_state(folder, Role.HOST):
        assert holder(folder, Role.HOST) == str(os.getpid())
        with pytest.raises(ConfigError, match="has the files of the host"):
            holder(folder, Role.GUEST)
    assert holder(folder, Role.HOST) is None


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from trilateral.common.base.roles import Role\n"
        "from trilateral.common.process.state_folder import held_state\n"
        "with held_state(pathlib.Path(sys.argv[1]), Role.HOST): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"the host, process {process.pid}"), held_state(tmp_path, Role.HOST):
            pass
        process.kill()
    with held_state(tmp_path, Role.HOST):
        pass


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="state: the folder .* cannot be written: Not a directory"):
        held_state(tmp_path / "file" / "state", Role.HOST).__enter__()
    monkeypatch.setattr(tempfile, "TemporaryFile", be_full)
    with pytest.raises(ConfigError, match=f"state: the folder {tmp_path} cannot be written: No space left on device"):
        held_state(tmp_path, Role.HOST).__enter__()
