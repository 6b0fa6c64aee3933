"""Why a file cannot be used. For a lack of permission: whose the file is, and what helps."""

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path


def explain(error: OSError, path: Path) -> str:
    """Return why a file cannot be used, for people of this organisation: the text has paths and names of users.

    Args:
        error: the error of reading or writing the file.
        path: the file, if the error names none.

    Returns:
        The system's reason. For a lack of permission also the owner, the user of this process, and what to do.
    """
    reason = error.strerror or type(error).__name__
    if not isinstance(error, PermissionError):
        return reason
    # The error may name a temporary file, so that the fault is found in the folder.
    return f"{reason}: {_way_out(Path(error.filename) if isinstance(error.filename, str) else path)}"


def user_name(number: int) -> str:
    """Return the name of a user, or the number itself if it has no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _way_out(path: Path) -> str:
    path, me = path.absolute(), user_name(os.geteuid())
    # Below a folder that this user may not search, nothing else can be known.
    closed = next((each for each in reversed(path.parents) if not os.access(each, os.X_OK, effective_ids=True)), None)
    found = closed or next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        status = found.stat()
    except OSError:
        return f"this process runs as {me}"
    is_folder = stat.S_ISDIR(status.st_mode)
    whose = f"{found} belongs to {user_name(status.st_uid)}, and this process runs as {me}"
    if status.st_uid == os.geteuid():
        return f"{whose}: run `chmod u+{'rwx' if is_folder else 'rw'} {shlex.quote(str(found))}`"
    # No command that changes the owner or the group: it could take the file away from the process that needs it.
    other = _other_user(status)
    run_as = f"run this command as the server's user, such as `sudo --user {shlex.quote(other)} ...`" if other else ""
    if is_folder:
        access = f"let user {me} into {found}" if closed else f"let user {me} write to {found}"
        return f"{whose}: {f'{run_as}; or {access}' if run_as else 'use a folder that this user has access to'}"
    access = (
        f"let user {me} use it, for example by its group; a private key, or a file in the state folder, should belong "
        "to the server's user"
    )
    return f"{whose}: {f'{run_as}; or' if run_as else 'as root,'} {access}"


def _other_user(status: os.stat_result) -> str | None:
    """Return the user whom a file is for: its owner, or the one after whom its group is named; None for root."""
    if status.st_uid != 0:
        return user_name(status.st_uid)
    try:
        name = grp.getgrgid(status.st_gid).gr_name
        user = pwd.getpwnam(name)
    except KeyError:
        return None
    return name if user.pw_uid not in (0, os.geteuid()) else None
