"""What a server of each role loads. Libraries that few jobs need would cost every process time and memory."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

TABLE_LIBRARIES = {"pyarrow", "nacl"}
FEW_JOBS_NEED = {"pandas", "scipy", "sklearn", "phe", "matplotlib", "opentelemetry", "rich", "aiohttp", "jinja2"}

SERVER = "import sys, trilateral.cli.main, trilateral.common.config.load, trilateral.{role}.server; print(*sys.modules)"

JOB = """
import sys
from pathlib import Path
import numpy as np
import trilateral.guest_party.server
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.model.assessment import assess
from trilateral.common.data.party_data import load_party_data

label = {"column": "label", "positive": "1", "negative": "0"}
dataset = DatasetConfig.model_validate(
    {"path": sys.argv[1], "categorical": ["branch"], "label": label, "preprocessing": {"missing_indicator": True}}
)
data = load_party_data(dataset, JobConfig(name="j", dataset="d", batch="all", holdout=0.3), labelled=True)
scores = data.block.holdout_columns.sum(axis=1)
found = assess(scores, data.block.holdout_labels, dataset.label, data.block.labels, intercept=True)
assert found.calibration.method == "platt" and len(data.preprocessing.terms) == 6, data.preprocessing.terms
print(*sys.modules)
"""


def loaded(program: str, *arguments: str | Path) -> set[str]:
    """The top-level packages that a program has loaded at its end."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("role", ["host_party", "guest_party"])
def test_a_party_loads_what_reads_tables_and_no_more(role: str) -> None:
    modules = loaded(SERVER.format(role=role))
    assert modules >= TABLE_LIBRARIES
    assert not modules & FEW_JOBS_NEED


def test_the_coordinator_which_has_no_table_loads_nothing_for_tables() -> None:
    assert not loaded(SERVER.format(role="coordinator")) & (TABLE_LIBRARIES | FEW_JOBS_NEED)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_training_with_all_defaults_loads_no_more(name: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": [f"p{row}" for row in range(200)],
            "age": [None if row % 9 == 0 else row % 61 for row in range(200)],
            "income": [row**1.5 for row in range(200)],
            "branch": ["north", "south", "east", None] * 50,
            "label": [int(row % 61 + row % 7 > 30) for row in range(200)],
        }
    )
    path = tmp_path / name
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    assert not loaded(JOB, path) & FEW_JOBS_NEED
