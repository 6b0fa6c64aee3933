"""The services of docker-compose.yml without a container engine, on namespaces of Linux.

Each service gets what an engine would give it:

- a read-only root file system as the Dockerfile makes it, bound from folders of this machine;
- its volumes and configurations;
- its user, capabilities, and environment;
- a network namespace, in which it can resolve and reach only the services with which it shares a network.
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
"""Where the libraries of this machine are bound. In the image they are in `PREFIX`."""
DEVICES = ("null", "zero", "full", "random", "urandom")
WRITABLE = ("tmp", "dev/shm")
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HEALTHY_SECONDS = 90.0
PAUSE = 1.0
"""Seconds between two health checks. Each starts an interpreter, while the server is starting its own."""


class Containers:
    """Runs services until the block ends.

    Args:
        folder: Where the root file system, the volumes, and the bound files go.
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
        """Start a service after those that it depends on, as `docker compose up` does.

        Returns:
            The output of a service that has ended.
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
        """Run a command in the container of a service, as `docker compose exec` does."""
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
        """Return the folder of a named volume."""
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
        """Return the commands that mount files over the root file system and make it read-only."""
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
        # The root itself comes last; the mounts in it keep their own modes.
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
        """Write the names of services on the same networks, as the name server of an engine would resolve them."""
        path = self._folder / f"{service.name}.hosts"
        reachable = [
            f"{self._wan.address(name)} {name}"
            for name, other in self.services.items()
            if other.networks & service.networks
        ]
        path.write_text("\n".join(["127.0.0.1 localhost", *reachable]) + "\n")
        return path

    def _source(self, mount: Mount) -> Path:
        """Give a new volume the owner and mode of the folder in the image, if there is one."""
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
    """Bind a file or folder to another path, which is made first; the root is still writable."""
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
    """Return what to bind in addition to the system: the libraries, and the interpreter if it lies elsewhere."""
    found = {Path(sysconfig.get_path("purelib")): root / LIBRARIES[1:]}
    base = Path(sys.base_prefix)
    if not base.is_relative_to("/usr") or base.is_relative_to("/usr/local"):
        found[base] = root / str(base)[1:]
    return found


def _make_root(root: Path, image: Image) -> None:
    """Make the folders of the image, with the project installed as in the Dockerfile, not as a checkout."""
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
    # A path file adds the libraries; their own path files lead to a checkout that does not exist here.
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
