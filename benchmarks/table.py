"""Measure reading and preparing a party's table, and the encrypted product with its columns.

python benchmarks/table.py [--rows 1000000] [--json]
python benchmarks/table.py --large [--rows 10000000] [--json]

The table has 15 columns of numbers with a tenth of the values missing, and 5 columns of ten categories each. Missing
indicators are on. For each file format, a new process reads the whole file, fits the preprocessing on all rows, and
computes the training columns, with whitening and without, with the default settings of scratch space. Another process
reads and transforms in chunks, as scoring does. The figures are seconds of processor time, and the peak memory of each
process.

`product` is one encrypted product of 1000 rows, first with the number columns alone, then with the terms of categories
and indicators alone: milliseconds of processor time for each term, and the path of the arithmetic.

With `--large` there is another table, of an ID, 10 columns of numbers and a label, in a random order. A new process
reads it and puts its rows in the order of their IDs.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# `python benchmarks/table.py` searches its own folder for modules; this adds the folder above.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.made_tables import LABEL_COLUMN, table_path, write_tables
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ScratchConfig
from trilateral.common.data.features import Features
from trilateral.common.data.preprocessing import Preprocessing
from trilateral.common.data.tables.table import read_table, stream_table
from trilateral.common.jobs.arithmetic import use_arithmetic
from trilateral.common.paillier.factory import make_cipher
from trilateral.common.paillier.keys import generate_private_key
from trilateral.common.protocol.scales import round_scale
from trilateral.common.scratch.space import ScratchSpace

NUMBERS = [f"number {each}" for each in range(15)]
CATEGORIES = [f"category {each}" for each in range(5)]
PRODUCT_ROWS = 1000


def make_table(n_rows: int) -> pd.DataFrame:
    """Return skewed numbers with missing values, and text."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": [f"person-{row:09}" for row in rng.permutation(n_rows)]}
    for name in NUMBERS:
        columns[name] = np.where(rng.random(n_rows) < 0.1, np.nan, np.exp(rng.normal(size=n_rows)).round(6))
    words = np.array([f"word {each}" for each in range(10)])
    for name in CATEGORIES:
        columns[name] = words[rng.choice(10, size=n_rows, p=[0.28, *[0.08] * 9])]
    return pd.DataFrame(columns)


def dataset(path: Path, *, whiten: bool) -> DatasetConfig:
    """Return the configuration of the table."""
    return DatasetConfig.model_validate(
        {"path": path, "categorical": CATEGORIES, "preprocessing": {"missing_indicator": True, "whiten": whiten}}
    )


def scratch_space(folder: Path) -> ScratchSpace:
    """Return scratch space with the default settings."""
    settings = ScratchConfig()
    memory_bytes = settings.memory_mb * 10**6
    return ScratchSpace(folder, max_bytes=None, memory_bytes=memory_bytes, encrypt=settings.encrypt)


def read_back(frame: pd.DataFrame) -> Features:
    """Return a data frame as a party reads it from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        frame.to_parquet(path, index=False)
        return read_table(dataset(path, whiten=False)).features


def prepare(path: Path, whiten: bool) -> dict[str, float]:
    """Read the whole file, fit, and transform, as a party does for a job."""
    config = dataset(path, whiten=whiten)
    with scratch_space(path.parent).open() as scratch:
        marks = [time.process_time()]
        table = read_table(config, scratch)
        marks.append(time.process_time())
        steps = Preprocessing.fit(table.features, config.preprocessing, intercept=True, l2=1e-3)
        marks.append(time.process_time())
        columns = scratch.array(np.float64, (len(table.ids), steps.n_columns))
        for block in steps.transform_blocks(table.features):
            columns.append(block)
        marks.append(time.process_time())
    return dict(zip(("read", "fit", "transform"), np.diff(marks).round(2).tolist(), strict=True))


def stream(path: Path, steps: dict[str, Any]) -> dict[str, float]:
    """Read and transform in chunks."""
    fitted = Preprocessing.from_dict(steps)
    start = time.process_time()
    categorical = fitted.texts
    for chunk in stream_table(dataset(path, whiten=True), fitted.features, categorical):
        fitted.transform(chunk.features)
    return {"read and transform": round(time.process_time() - start, 2)}


def read_large(path: Path, scratch_folder: Path) -> dict[str, float]:
    """Read a table of `made_tables` into scratch space."""
    config = DatasetConfig.model_validate({"path": path, "label": {"column": LABEL_COLUMN}})
    start = time.process_time()
    with scratch_space(scratch_folder).open() as scratch:
        read_table(config, scratch)
        return {
            "read and sort": round(time.process_time() - start, 2),
            "scratch_mb": round(scratch.peak_bytes / 1e6),
        }


def measure_large(n_rows: int) -> dict[str, Any]:
    """Return the figures for a table that is larger than the scratch memory."""
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), n_rows, (1, 10))
        figures = alone(read_large, table_path(Path(folder), Role.GUEST), Path(folder))
    return {"rows": n_rows, **figures, "scratch_mb": figures["seconds"].pop("scratch_mb")}


def _report(results: Any, work: Callable[..., dict[str, float]], arguments: tuple[Any, ...]) -> None:
    seconds = work(*arguments)
    # `ru_maxrss` of a new process begins with the memory of the process that started it.
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    results.put({"seconds": seconds, "peak_rss_mb": round(peak)})


def alone(work: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, Any]:
    """Run in a new process."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_report, args=(results, work, arguments))
    process.start()
    result: dict[str, Any] = results.get()
    process.join()
    return result


def product() -> dict[str, Any]:
    """Measure one encrypted product with the terms of each kind, without whitening."""
    frame = make_table(PRODUCT_ROWS)
    config = dataset(Path(), whiten=False).preprocessing
    features = read_back(frame)
    steps = Preprocessing.fit(features, config, intercept=False)
    columns = steps.transform(features)
    binary = np.array([term not in NUMBERS for term in steps.terms])
    path = use_arithmetic()
    key = generate_private_key(2048)
    scale = round_scale(JobConfig(name="j", dataset="d"), PRODUCT_ROWS, PRODUCT_ROWS)
    samples = np.random.default_rng(1).integers(-(2**20), 2**20, PRODUCT_ROWS)
    cipher = make_cipher("packed", key.public_key)
    ciphertexts = cipher.encrypt(scale.layout.pack(samples))
    figures: dict[str, Any] = {"path": path}
    for name, chosen in (("numbers", ~binary), ("categories and indicators", binary)):
        encoded = scale.encode_columns(columns[:, chosen])
        start = time.process_time()
        work = cipher.start_product(scale.layout, encoded)
        work.update(cipher.open(ciphertexts))
        work.result()
        seconds = time.process_time() - start
        n_terms = int(chosen.sum())
        figures[name] = {
            "terms": n_terms,
            "milliseconds a term": round(1000 * seconds / n_terms, 2),
        }
    return figures


def measure(n_rows: int) -> dict[str, Any]:
    """Return all figures for tables of `n_rows`."""
    figures: dict[str, Any] = {"rows": n_rows}
    with tempfile.TemporaryDirectory() as folder:
        table = make_table(n_rows)
        config = dataset(Path(), whiten=True).preprocessing
        steps = Preprocessing.fit(read_back(table.iloc[:10_000]), config, intercept=True).to_dict()
        for name in ("table.csv", "table.parquet"):
            path = Path(folder) / name
            table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
        del table
        for path in sorted(Path(folder).glob("table.*")):
            figures[path.name] = {
                "megabytes": round(path.stat().st_size / 1e6),
                "whitened": alone(prepare, path, True),
                "not whitened": alone(prepare, path, False),
                "in chunks": alone(stream, path, steps),
            }
    return figures | {"product": product()}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="rows of the table (default: 1000000, or 10000000 with --large)")
    parser.add_argument("--large", action="store_true", help="measure a table that is larger than the scratch memory")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    work, n_rows = (measure_large, 10_000_000) if arguments.large else (measure, 1_000_000)
    figures = work(arguments.rows or n_rows)
    print(json.dumps(figures) if arguments.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
