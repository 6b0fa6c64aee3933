"""The notebooks, as a newcomer runs them in Jupyter."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL, SCORECARD = DOCS / "tutorial.ipynb", DOCS / "scorecard.ipynb"


def run(path: Path, folder: Path) -> tuple[list[Any], str]:
    """Run a notebook in a folder, and return its outputs and what it has printed."""
    # The imports take seconds, and each worker of pytest-xdist imports this module.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any(output.get("name") == "stderr" for output in outputs)
    return outputs, "".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.mark.slow
# The kernel is a process of its own, and what its libraries leave behind is not ours.
@pytest.mark.filterwarnings("default")
def test_the_tutorial_runs_and_shows_the_result(tmp_path: Path) -> None:
    outputs, text = run(TUTORIAL, tmp_path)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert "569 common IDs: 569 at the guest, 569 at the host" in text
    assert "finished after" in text
    assert "did you mean epochs?" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_scorecard_runs_and_its_points_are_those_of_the_scores(tmp_path: Path) -> None:
    outputs, text = run(SCORECARD, tmp_path)
    tables = [output["data"]["text/plain"] for output in outputs if "text/plain" in output.get("data", {})]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert "utilisation" in tables[0]
    assert "column 3 of the host" in tables[1]
    difference = re.search(r"largest difference: ([\d.]+) points", text)
    assert difference is not None
    assert float(difference[1]) < 0.01
    assert text.endswith("True\n")


@pytest.mark.parametrize("path", [TUTORIAL, SCORECARD], ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
