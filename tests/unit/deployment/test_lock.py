"""The lock files have a version and hashes for each package that pyproject.toml asks for, and no addresses."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.compose import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
OWN = {"trilateral"}
LOCKS = {
    "requirements.txt": [*RUN, *EXTRAS["report"]],
    "requirements-dev.txt": [*RUN, *EXTRAS["dev"], *EXTRAS["traces"]],
    "requirements-build.txt": PROJECT["build-system"]["requires"],
}


def locked(path: Path) -> dict[str, str]:
    """Return the version of every package in a lock file, all of which have hashes."""
    joined = path.read_text().replace("\\\n", " ")
    found: dict[str, str] = {}
    for line in joined.splitlines():
        requirement, *hashes = line.split("--hash=")
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each.strip()) for each in hashes)
        name, version = requirement.partition(";")[0].strip().split("==")
        found[canonicalize_name(name)] = version
    return found


@pytest.mark.parametrize(("name", "wanted"), LOCKS.items())
def test_every_requirement_is_locked_to_a_version_that_it_allows(name: str, wanted: Iterable[str]) -> None:
    versions = locked(ROOT / name)
    for requirement in map(Requirement, wanted):
        if requirement.name not in OWN:
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, (
                f"run make lock: {requirement}"
            )


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_no_address(name: str) -> None:
    assert "://" not in (ROOT / name).read_text()


def test_the_lock_files_agree() -> None:
    development = locked(ROOT / "requirements-dev.txt")
    for name in LOCKS:
        assert locked(ROOT / name).items() <= development.items()


def test_the_bill_of_materials_has_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    recipe = subprocess.run(
        [
            "make",
            "--dry-run",
            "--no-print-directory",
            "--old-file=.venv/set-up",
            f"BIN={Path(sys.executable).parent}",
            "sbom",
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    out = tmp_path / "trilateral.cdx.json"
    subprocess.run(recipe.replace("dist/trilateral.cdx.json", str(out)), shell=True, cwd=ROOT, check=True)
    bill = json.loads(out.read_text())
    assert bill["metadata"]["component"]["version"] == PROJECT["project"]["version"]
    listed = {canonicalize_name(each["name"]): each for each in bill["components"]}
    assert {name: each["version"] for name, each in listed.items()} == locked(ROOT / "requirements.txt")
    for each in listed.values():
        assert [reference["hashes"] for reference in each["externalReferences"] if reference["type"] == "distribution"]
