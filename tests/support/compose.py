"""What the Dockerfile and docker-compose.yml say, as far as tests of the deployment want to know."""

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
    """What the last stage of the Dockerfile makes."""

    environment: dict[str, str]
    user: str
    folder: str
    """In which commands begin."""
    entrypoint: list[str]
    health_check: list[str]
    owned: dict[str, tuple[int, int]]
    """Folders that are somebody's, with the user and the mode."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of a container that is not the image's."""

    source: str
    """Name of a volume, or a path relative to the compose file's folder."""
    target: str
    read_only: bool

    @property
    def is_volume(self) -> bool:
        """Whether it is a named volume."""
        return "/" not in self.source


@dataclass(frozen=True)
class Service:
    """One service, with what its image adds."""

    name: str
    settings: dict[str, Any]
    command: list[str]
    """All words, the entrypoint's first."""
    user: str
    mounts: list[Mount]
    networks: frozenset[str]
    health_check: list[str]
    depends_on: dict[str, str]
    """Condition by service."""
    capabilities: list[str]


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, those over several lines in one."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def read_image(path: Path = ROOT / "Dockerfile") -> Image:
    """Read the last stage."""
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
    """Read a compose file with nothing set in the environment: `${NAME:-default}` is the default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text())
    content: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))
    return content


def read_services(path: Path = ROOT / "docker-compose.yml") -> dict[str, Service]:
    """Return the services that are built from the project's image, by name."""
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
