"""Why a file cannot be used. For a lack of permission: whose the file is, and the command that helps."""

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
        The system's reason. For a lack of permission also the owner, the user of this process, and what to run.
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


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
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
    quoted = shlex.quote(str(found))
    owner = user_name(status.st_uid)
    whose = f"{found} belongs to {owner}, and this process runs as {me}"
    if status.st_uid == os.geteuid():
        return f"{whose}: run `chmod u+{'rwx' if stat.S_ISDIR(status.st_mode) else 'rw'} {quoted}`"
    if closed is not None:
        group = _group_name(os.getegid())
        return f"{whose}: as root, run `chgrp {group} {quoted}` and `chmod g+x {quoted}`"
    command = f"as root, run `chown {me} {quoted}`"
    return f"{whose}: {command}" if status.st_uid == 0 else f"{whose}: run this as {owner}, or {command}"
