"""Check the dashboard against the types that Grafana publishes, of the release in docker-compose.yml.

Needs `npm`, which fetches Grafana's package @grafana/schema. The script makes a JSON schema from its types. The exit
code is 1 if the dashboard has a field that Grafana does not know, lacks one, or has a value of another type.

    python -m tests.monitoring.grafana_schema
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "configs/monitoring/grafana/dashboards/trilateral.json"
TYPES = Path(__file__).with_name("board.ts")
GENERATOR = "ts-json-schema-generator@2"


def main() -> None:
    """Check the dashboard."""
    if shutil.which("npm") is None:
        sys.exit("npm must be in the PATH: on Debian, apt install npm")
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    release = compose["services"]["grafana"]["image"].partition(":")[2]
    with tempfile.TemporaryDirectory() as folder:
        schema = make_schema(Path(folder), release)
    board = json.loads(DASHBOARD.read_text())
    faults = find_faults(board, schema)
    print(f"{len(board['panels'])} panels against the types of Grafana {release}: {len(faults)} faults")
    print(*faults, sep="\n")
    sys.exit(bool(faults))


def make_schema(folder: Path, release: str) -> dict[str, Any]:
    """Fetch the types of a release, and return the JSON schema of a dashboard."""
    shutil.copy(TYPES, folder)
    packages = [f"@grafana/schema@{release}", GENERATOR]
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--ignore-scripts", *packages], cwd=folder, check=True)
    # Without `expose`, types of one name in two modules would clash.
    words = ["--path", TYPES.name, "--type", "Board", "--expose", "none", "--no-type-check", "--out", "schema.json"]
    subprocess.run(["npx", "--no-install", "ts-json-schema-generator", *words], cwd=folder, check=True)
    schema: dict[str, Any] = json.loads((folder / "schema.json").read_text())
    return schema


def find_faults(board: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return a line for each fault, with its place. For a panel, only those of its own type's schema."""
    faults = []
    for error in Draft7Validator(schema).iter_errors(board):
        causes = [error]
        if error.context and isinstance(error.instance, dict):
            kinds = [option["properties"]["type"]["const"] for option in error.schema["anyOf"]]
            number = kinds.index(error.instance["type"]) if error.instance["type"] in kinds else None
            causes = [each for each in error.context if each.schema_path[0] == number] or [error]
        faults += [f"{each.json_path}: {each.message}" for each in causes]
    return faults


if __name__ == "__main__":
    main()
