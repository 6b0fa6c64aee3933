"""Parsed parts of the Dockerfile and docker-compose.yml, for tests of the deployment."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Image:
    """The last stage of the Dockerfile."""

    environment: dict[str, str]
    user: str
    folder: str
    """Working directory of commands."""
    entrypoint: list[str]
    health_check: list[str]
    owned: dict[str, tuple[int, int]]
    """Folders with an owner: the user ID and the mode by path."""


@dataclass(frozen=True)
class Mount:
    """A folder or file that is mounted into a container."""

    source: str
    """Name of a volume, or a path relative to the folder of the Compose file."""
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        """Whether the source is a named volume."""
        return "/" not in self.source


@dataclass(frozen=True)
class Service:
    """A service, with the defaults of its image."""

    name: str
    settings: dict[str, Any]
    command: list[str]
    """All words, starting with those of the entry point."""
    user: str
    mounts: list[Mount]
    networks: frozenset[str]
    health_check: list[str]
    depends_on: dict[str, str]
    """The condition for each service that this one depends on."""
    capabilities: list[str]


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def read_image(path: Path = ROOT / "Dockerfile") -> Image:
    """Read the last stage of a Dockerfile."""
    steps = instructions(path)
    stage = steps[max(number for number, (word, _) in enumerate(steps) if word == "FROM") + 1 :]
    found = dict(stage)
    environment = dict(word.split("=", 1) for step, rest in stage if step == "ENV" for word in shlex.split(rest))
    (made,) = (rest for word, rest in stage if word == "RUN" and "install --directory" in rest)
    folders = re.search(r"for folder in (.*?); do", made)
    owner = re.search(r"--mode (\d+) --owner (\d+)", made)
    assert folders is not None
    assert owner is not None
    return Image(
        environment=environment,
        user=found["USER"],
        folder=found["WORKDIR"],
        entrypoint=json.loads(found["ENTRYPOINT"]),
        health_check=json.loads(found["HEALTHCHECK"].partition("CMD ")[2]),
        owned={folder: (int(owner[2]), int(owner[1], 8)) for folder in folders[1].split()},
    )


def read_compose(path: Path) -> dict[str, Any]:
    """Read a Compose file as if the environment were empty: `${NAME:-default}` becomes the default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text())
    content: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    return content


def read_services(path: Path = ROOT / "docker-compose.yml") -> dict[str, Service]:
    """Return the services that run the project's image, by name."""
    image, content = read_image(), read_compose(path)
    return {
        name: _service(name, settings, content, image)
        for name, settings in content["services"].items()
        if settings["image"] == "trilateral"
    }


def _service(name: str, settings: dict[str, Any], content: dict[str, Any], image: Image) -> Service:
    mounts = [
        Mount(content[kind][each["source"]]["file"], each["target"], read_only=True)
        for kind in ("configs", "secrets")
        for each in settings.get(kind, [])
    ]
    for volume in settings.get("volumes", []):
        source, target, *mode = volume.split(":")
        mounts.append(Mount(source, target, read_only=mode == ["ro"]))
    return Service(
        name,
        settings,
        [*settings.get("entrypoint", image.entrypoint), *settings["command"]],
        settings["user"],
        mounts,
        frozenset(settings.get("networks", [])),
        settings["healthcheck"].get("test", ["NONE"])[1:],
        {other: each["condition"] for other, each in settings.get("depends_on", {}).items()},
        settings.get("cap_add", []),
    )
