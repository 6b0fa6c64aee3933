"""The services of docker-compose.yml without a container engine: what each is given, on namespaces of Linux.

A root file system as the Dockerfile makes it, with the program at the same path, bound together of folders of this
machine and read-only; volumes and configurations mounted where the service has them; the user, the capabilities and
the environment that it has; in a network namespace of its own, where the names of those services can be resolved that
it shares a network with, and no others can be reached.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.support.compose import ROOT, Image, Mount, Service, read_image, read_services
from tests.support.wan import Line, Wan

PREFIX = "/opt/trilateral"
LIBRARIES = "/opt/libraries"
"""Where the installed libraries of this machine are bound: the image has them in `PREFIX` as well."""
DEVICES = ("null", "zero", "full", "random", "urandom")
WRITABLE = ("tmp", "dev/shm")
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEALTHY_SECONDS = 90.0
PAUSE = 1.0
"""Between two checks of health: they start an interpreter, beside one that is starting."""


class Containers:
    """Runs services, from entry to exit.

    Args:
        folder: for the root file system, the volumes and what is bound.
    """

    def __init__(self, folder: Path) -> None:
        self.services = read_services()
        self._folder = folder
        self._image = read_image()
        self._servers: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Containers":
        self._root = self._folder / "root"
        _make_root(self._root, self._image)
        connected = [name for name, service in self.services.items() if service.networks]
        self._wan = Wan(dict.fromkeys(connected, Line())).__enter__()
        for one, other in combinations(connected, 2):
            if not self.services[one].networks & self.services[other].networks:
                self._wan.cut(one, other)
        return self

    def __exit__(self, *error: Any) -> None:
        for server in self._servers.values():
            server.terminate()
        for server in self._servers.values():
            server.communicate()
        self._wan.__exit__(*error)

    def up(self, name: str) -> str:
        """Bring a service up after those that it depends on, as `docker compose up` does.

        Returns:
            What a service that has ended has written.
        """
        service = self.services[name]
        for other in service.depends_on:
            if other not in self._servers:
                self.up(other)
        for other, condition in service.depends_on.items():
            if condition == "service_healthy":
                self._wait_until_healthy(other)
        self._servers[name] = self._start(service, service.command)
        return "" if service.health_check else self._end(name)

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container, as `docker compose exec` does."""
        process = self._start(self.services[name], command)
        output, _ = process.communicate(timeout=HEALTHY_SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, output)

    def stop(self, name: str) -> int:
        """Stop a service, and return its exit code."""
        server = self._servers.pop(name)
        server.terminate()
        server.communicate()
        return server.returncode

    def volume(self, name: str) -> Path:
        """Where a named volume lies."""
        return self._folder / "volumes" / name

    # --- what an engine does

    def _wait_until_healthy(self, name: str) -> None:
        deadline = time.monotonic() + HEALTHY_SECONDS
        while (asked := self.run(name, *self.services[name].health_check)).returncode:
            if time.monotonic() > deadline or self._servers[name].poll() is not None:
                self._servers[name].kill()
                raise RuntimeError(f"{name}: {asked.stdout}\n{self._servers[name].communicate()[0]}")
            time.sleep(PAUSE)

    def _end(self, name: str) -> str:
        output, _ = self._servers[name].communicate(timeout=2 * HEALTHY_SECONDS)
        if self._servers[name].returncode:
            raise RuntimeError(f"{name}: {output}")
        return output

    def _start(self, service: Service, command: Any) -> subprocess.Popen[str]:
        script = self._folder / f"{service.name}.sh"
        script.write_text("\n".join([*self._mounts(service), *self._becoming(service)]) + ' "$@"\n')
        words = ["unshare", "--mount", "--propagation=private", "sh", "-eu", str(script), *command]
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "env": _expanded(self._image.environment),
        }
        if service.networks:
            return self._wan.run_in(service.name, words, **options)
        return subprocess.Popen(["unshare", "--net", *words], **options)

    def _mounts(self, service: Service) -> list[str]:
        """What is mounted over the root file system, which is then read-only."""
        root = self._root
        lines = []
        for name in SYSTEM:
            if (root / name).is_dir() and not (root / name).is_symlink():
                lines.append(_bind(Path("/", name), root / name, read_only=True))
        for source, target in _program(root).items():
            lines.append(_bind(source, target, read_only=True))
        for device in DEVICES:
            lines.append(_bind(Path("/dev", device), root / "dev" / device, read_only=False))
        lines += [
            f"mount --rbind /proc {root}/proc",
            *(f"mount -t tmpfs -o mode=1777,noexec,nosuid,nodev tmpfs {root}/{each}" for each in WRITABLE),
        ]
        lines.append(_bind(self._hosts(service), root / "etc/hosts", read_only=True))
        for mount in sorted(service.mounts, key=lambda each: each.target):
            lines.append(_bind(self._source(mount), root / mount.target[1:], read_only=mount.read_only))
        # Last of all, the root itself: what is mounted in it stays as it is.
        lines.append(f"mount -o remount,ro,bind {shlex.quote(str(root))}")
        return [f"mount --bind {shlex.quote(str(root))} {shlex.quote(str(root))}", *lines]

    def _becoming(self, service: Service) -> list[str]:
        user, group = service.user.split(":")
        kept = ",".join(["-all", *(f"+{name.lower()}" for name in service.capabilities)])
        words = [
            "exec chroot",
            shlex.quote(str(self._root)),
            "setpriv --no-new-privs",
            f"--reuid={user} --regid={group} --clear-groups --inh-caps=-all --bounding-set={kept}",
            f"env --chdir={self._image.folder}",
        ]
        return [" ".join(words)]

    def _hosts(self, service: Service) -> Path:
        """Names are those of services on the same networks, as the engine's own name server has them."""
        path = self._folder / f"{service.name}.hosts"
        reachable = [
            f"{self._wan.address(name)} {name}"
            for name, other in self.services.items()
            if other.networks & service.networks
        ]
        path.write_text("\n".join(["127.0.0.1 localhost", *reachable]) + "\n")
        return path

    def _source(self, mount: Mount) -> Path:
        """A volume that is mounted for the first time takes owner and mode of the image's folder, if it has one."""
        if not mount.is_volume:
            return self._folder / mount.source if mount.source.startswith("./") else ROOT / mount.source
        path = self.volume(mount.source)
        if not path.exists():
            path.mkdir(parents=True)
            user, mode = self._image.owned.get(mount.target, (0, 0o755))
            os.chown(path, user, user)
            path.chmod(mode)
        return path


def _bind(source: Path, target: Path, *, read_only: bool) -> str:
    """A file or folder at another place; the place is made, since the root can still be written."""
    source_word, target_word = shlex.quote(str(source)), shlex.quote(str(target))
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    elif not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    line = f"mount --bind {source_word} {target_word}"
    return f"{line} && mount -o remount,ro,bind {target_word}" if read_only else line


def _expanded(environment: dict[str, str]) -> dict[str, str]:
    return {name: value.replace("$PATH", PROGRAMS) for name, value in environment.items()}


def _program(root: Path) -> dict[Path, Path]:
    """What of this machine is bound besides the system: the interpreter, where it is another, and the libraries."""
    found = {Path(sysconfig.get_path("purelib")): root / LIBRARIES[1:]}
    base = Path(sys.base_prefix)
    if not base.is_relative_to("/usr") or base.is_relative_to("/usr/local"):
        found[base] = root / str(base)[1:]
    return found


def _make_root(root: Path, image: Image) -> None:
    """The folders of the image, with the project installed as the Dockerfile does: its packages, and no checkout."""
    for name in ("etc", "proc", *WRITABLE):
        (root / name).mkdir(parents=True)
    for name in SYSTEM:
        here = Path("/", name)
        if here.is_symlink():
            (root / name).symlink_to(here.readlink())
        elif here.is_dir():
            (root / name).mkdir()
    for folder, (user, mode) in image.owned.items():
        path = root / folder[1:]
        path.mkdir(parents=True)
        os.chown(path, user, user)
        path.chmod(mode)
    _install(root / PREFIX[1:])


def _install(prefix: Path) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = prefix / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    shutil.copytree(ROOT / "src/trilateral", packages / "trilateral", ignore=shutil.ignore_patterns("*.c", "*.h"))
    # Libraries come by a line of their own; what it installs for development leads to a checkout that is not there.
    (packages / "libraries.pth").write_text(f"{LIBRARIES}\n")
    for information in Path(sysconfig.get_path("purelib")).glob("trilateral-*.dist-info"):
        shutil.copytree(information, packages / information.name)
    interpreter = Path(sys.base_prefix) / "bin" / version
    (prefix / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\ninclude-system-site-packages = false\n")
    (prefix / "bin").mkdir()
    (prefix / "bin/python").symlink_to(interpreter)
    program = prefix / "bin/trilateral"
    program.write_text(f"#!{PREFIX}/bin/python\nfrom trilateral.cli.main import main\n\nmain()\n")
    program.chmod(0o755)
