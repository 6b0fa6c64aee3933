"""The tutorial, as a newcomer runs it in Jupyter."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


@pytest.mark.slow
# The kernel is a process of its own, and what its libraries leave behind is not ours.
@pytest.mark.filterwarnings("default")
def test_the_tutorial_runs_and_shows_the_result(tmp_path: Path) -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=150, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert len(pictures) == 3
    assert "569 common IDs: 569 at the guest, 569 at the host" in text
    assert "finished after" in text
    assert "did you mean epochs?" in text
    assert not any(output.get("name") == "stderr" for output in outputs)


def test_the_tutorial_is_committed_without_outputs() -> None:
    notebook = json.loads(TUTORIAL.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
