"""Logs at debug level, records, metrics and reports of a training contain no private data."""

import asyncio
import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest

from tests.support.three_processes import KnownProcesses
from tests.support.three_servers import DATASET, make_configs, train_over_localhost, write_tables
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.config.process import MetricsConfig, ProcessConfig, UiConfig
from trilateral.common.data.model.model_file import PartyModel, load_model
from trilateral.common.jobs.folder import JobFolder
from trilateral.common.paillier.keys import PrivateKey, generate_private_key
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FAILED, JOB_STATE_FINISHED
from trilateral.common.process.job_client import JobClient
from trilateral.common.report.page import report_html
from trilateral.common.trial.development import write_development_files
from trilateral.common.trial.localhost import free_addresses

JOB = JobConfig(name="watched", dataset=DATASET, algorithm=Sqn(interval=2), batch=60, epochs=4, key_bits=512)
SHARED_JOB = JobConfig(name="watched", dataset=DATASET, protocol="shares", tolerance=0.0, epochs=8)
POSITIVE, NEGATIVE = "labelled-zqpositive", "labelled-zqnegative"
MIN_DIGITS = 6
"""Fewest digits of a number to search for; shorter ones occur by chance."""
NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"


def write_recognisable_tables(folder: Path) -> dict[Role, pd.DataFrame]:
    tables = write_tables(folder)
    for role, table in tables.items():
        table["id"] = "person-zq" + table["id"]
        if role is Role.GUEST:
            table["label"] = table["label"].map({"yes": POSITIVE, "no": NEGATIVE})
        table.to_csv(folder / f"{role}.csv", index=False)
    return tables


def spellings_of(values: Iterable[float]) -> Iterator[str]:
    """Yield each number with all its digits, and with six."""
    for value in values:
        for text in (repr(float(value)), f"{value:.6g}", f"{value:.6e}", f"{value:.6f}"):
            if len(text.split("e")[0].lstrip("-0.").replace(".", "")) >= MIN_DIGITS:
                yield text.lstrip("-")


def spellings_of_key(key: PrivateKey) -> Iterator[str]:
    """Yield the first twenty digits of each number, decimal and hexadecimal, and its bytes in base64 and as a repr."""
    for number in (key.p, key.q, key.public_key.n):
        data = number.to_bytes((number.bit_length() + 7) // 8, "big")
        yield from (str(number)[:20], f"{number:x}"[:20], f"{number:X}"[:20])
        yield from (base64.b64encode(data).decode()[:20], repr(data)[2:40])


def weights_of(model: PartyModel) -> list[float]:
    return [*model.weights.values(), *model.standardised_weights.values(), *model.training_weights, model.intercept]


def found(needles: Iterable[str], files: Iterable[Path]) -> set[tuple[str, str]]:
    sought = set(needles)
    assert sought
    texts = {path: path.read_text(errors="replace") for path in files}
    return {(needle, path.name) for needle in sought for path, text in texts.items() if needle in text}


def found_numbers(numbers: Iterable[str], files: Iterable[Path]) -> set[tuple[str, str]]:
    """Find whole numbers only: six digits also begin a number of seconds now and then."""
    sought = set(numbers)
    assert sought
    shown = {path: set(re.findall(NUMBER, path.read_text(errors="replace"))) for path in files}
    return {(number, path.name) for path, tokens in shown.items() for number in sought & tokens}


def with_pages(configs: Mapping[Role, ProcessConfig]) -> dict[Role, ProcessConfig]:
    metrics, pages = free_addresses(), free_addresses()
    return {
        role: config.model_copy(
            update={"metrics": MetricsConfig(listen=metrics[role]), "ui": UiConfig(listen=pages[role])}
        )
        for role, config in configs.items()
    }


def save_metrics(configs: Mapping[Role, ProcessConfig], folder: Path) -> list[Path]:
    paths = []
    for role, config in configs.items():
        with urlopen(f"http://{config.metrics.listen}/metrics") as page:
            paths.append(folder / f"{role}.metrics")
            paths[-1].write_bytes(page.read())
    return paths


def save_pages(configs: Mapping[Role, ProcessConfig], folder: Path, *jobs: str) -> list[Path]:
    """Save what the live page of each process shows about jobs."""
    paths = []
    for role, config in configs.items():
        url = f"http://{config.ui.listen}/api"
        with urlopen(f"{url}/audit?n_lines=200") as page:
            shown = [page.read()]
        for job in jobs:
            with urlopen(f"{url}/jobs/{job}/settings") as page:
                shown.append(page.read())
            with urlopen(f"{url}/events?job={job}") as page:
                for line in page:
                    if line.startswith(b"event: beat"):
                        break
                    shown.append(line)
        paths.append(folder / f"{role}.page")
        paths[-1].write_bytes(b"".join(shown))
        # Otherwise nothing would be found in it.
        assert job.encode() in paths[-1].read_bytes()
        assert b'"is_from_start": true, "lines": [{' in paths[-1].read_bytes()
    return paths


def check_places(log: Path) -> None:
    """Check that lines of a job name the job, and lines of a round the round."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["level"] for line in lines} >= {"DEBUG", "INFO"}
    for line in lines:
        if line["message"].startswith("job "):
            assert line["message"].startswith(f"job {line['job']}: ")
    assert {line["round"] for line in lines if "round" in line} >= {1, 2, 3}


async def train(configs: dict[Role, ProcessConfig], job: JobConfig) -> int:
    async with JobClient(configs[Role.GUEST]) as client:
        return (await train_over_localhost(client, job)).state


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return generate_private_key(512)


@pytest.mark.parametrize("job", [JOB, SHARED_JOB], ids=lambda job: job.protocol)
def test_nothing_private_is_in_any_log_or_record_of_a_training(job: JobConfig, tmp_path: Path, key: PrivateKey) -> None:
    tables = write_recognisable_tables(tmp_path)
    write_development_files(tmp_path / "certificates")
    configs = make_configs(tmp_path, certificates=tmp_path / "certificates")
    guest = configs[Role.GUEST]
    label = guest.datasets[DATASET].label
    assert label is not None
    label = label.model_copy(update={"positive": POSITIVE, "negative": NEGATIVE})
    dataset = guest.datasets[DATASET].model_copy(update={"label": label})
    configs[Role.GUEST] = guest.model_copy(update={"datasets": {DATASET: dataset}})
    configs = with_pages(configs)

    with KnownProcesses(configs, tmp_path, key, "--log-level", "debug", "--log-format", "json") as processes:
        assert asyncio.run(train(configs, job)) == JOB_STATE_FINISHED
        # This job fails because of a party's table, and an error might quote rows.
        tables[Role.HOST].iloc[:-1].to_csv(tmp_path / "host.csv", index=False)
        assert (
            asyncio.run(train(configs, job.model_copy(update={"name": "failing", "aligned": True}))) == JOB_STATE_FAILED
        )
        shown = save_metrics(configs, tmp_path) + save_pages(configs, tmp_path, job.name, "failing")

    for log in processes.logs.values():
        check_places(log)
    logs = [*processes.logs.values(), *shown]
    records = [path for config in configs.values() for path in config.state.rglob("*") if path.is_file()]
    models = {role: load_model(JobFolder(configs[role].state, job.name).model) for role in PARTIES}
    written = {role: JobFolder(configs[role].state, job.name).model for role in PARTIES}
    assert {path.name for path in records} >= {"model.json", "history.jsonl"}
    for role, config in configs.items():
        logs.append(tmp_path / f"{role}.html")
        logs[-1].write_text(report_html(config, job.name))

    ids = [*tables[Role.HOST]["id"], "person-zq", POSITIVE, NEGATIVE]
    assert not found(ids, [*logs, *records])
    assert not found(spellings_of_key(key), [*logs, *records])
    # What prints a message whole prints its seed, or its shares and elements as an array.
    assert not found(["seed=", "seed:", "array(", "uint64", "elements="], [*logs, *records])
    for role in PARTIES:
        # Weights and medians of features are in the party's own model file, and nowhere else.
        elsewhere = [path for path in [*logs, *records] if path != written[role]]
        features = tables[role].select_dtypes(np.number).to_numpy()
        assert not found_numbers(spellings_of(features[np.isfinite(features)]), elsewhere)
        assert not found_numbers(spellings_of(weights_of(models[role])), elsewhere)
        assert found_numbers(spellings_of(weights_of(models[role])), [written[role]])
