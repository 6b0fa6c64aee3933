"""A process takes who may ask and what may leave from its changed file, and only from a whole and valid one."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import eventually
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.config.live import Difference, differences, plain, without_labels
from trilateral.common.config.load import load_process_config
from trilateral.common.config.process import ProcessConfig
from trilateral.common.process import live_settings
from trilateral.common.process.live_settings import NOTE, LiveSettings, RunningSettings, settings_of

HOST: dict[str, Any] = {
    "role": "host",
    "listen": "127.0.0.1:50051",
    "peers": {"guest": "127.0.0.1:50052", "coordinator": "127.0.0.1:50050"},
    "state": "state",
    "plaintext": True,
    "datasets": {"customers": {"path": "customers.csv"}},
}


@dataclass
class Running:
    """Live settings of a host, and what they have reported."""

    path: Path
    settings: dict[str, Any] = field(default_factory=lambda: {**HOST})
    changes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.path.exists():
            self.write()
        self.live = LiveSettings(load_process_config(self.path, {}), self.path, self._on_change)

    def _on_change(self, config: ProcessConfig, found: Sequence[Difference]) -> None:
        assert config is self.live.config
        self.changes += map(str, found)

    def write(self, **changes: Any) -> None:
        self.settings |= changes
        write_whole(self.path, yaml.safe_dump(self.settings))


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(live_settings, "LOOK_SECONDS", 0.02)
    started = Running(tmp_path / "process.yaml")
    async with watching(started):
        yield started


@asynccontextmanager
async def watching(running: Running) -> AsyncIterator[None]:
    task = asyncio.create_task(running.live.watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def said(caplog: pytest.LogCaptureFixture, text: str) -> Callable[[], bool]:
    return lambda: text in caplog.text


async def test_every_change_of_the_policy_is_reported_with_both_values(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.write(policy={"allow_prediction": True, "min_batch": 500})
    await eventually(lambda: running.live.config.policy.allow_prediction)
    assert running.changes == ["policy.min_batch: from 100 to 500", "policy.allow_prediction: from false to true"]
    assert "the configuration has changed: policy.allow_prediction: from false to true" in caplog.text
    running.write(policy={"allow_prediction": False})
    await eventually(lambda: not running.live.config.policy.allow_prediction)
    assert running.live.config.policy.min_batch == 100


async def test_datasets_operators_and_fingerprints_are_taken_too(running: Running) -> None:
    running.write(
        datasets={"customers": {"path": "customers.csv", "jobs": ["churn-*"]}, "new": {"path": "new.csv"}},
        peers={"guest": {"address": "127.0.0.1:50052", "fingerprint": "ab" * 32}, "coordinator": "127.0.0.1:50050"},
    )
    await eventually(lambda: "new" in running.live.config.datasets)
    assert running.live.config.datasets["customers"].jobs == ["churn-*"]
    assert running.live.config.peers[Role.GUEST].fingerprint == ["ab" * 32]
    assert len(running.changes) == 3


async def test_what_is_scored_online_is_taken_and_other_online_settings_are_not(running: Running) -> None:
    running.write(online={"precompute": [{"job": "churn", "dataset": "customers"}]})
    await eventually(lambda: bool(running.live.config.online.precompute))
    assert Difference("online.precompute", [], []).is_live
    assert not Difference("online.listen", None, "127.0.0.1:1").is_live
    running.write(online={})
    await eventually(lambda: not running.live.config.online.precompute)


async def test_other_settings_wait_for_a_restart_and_one_warning_names_them(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.write(
        listen="127.0.0.1:1",
        limits={"max_jobs": 1},
        policy={"max_epochs": 7},
        peers=HOST["peers"] | {"guest": "[::1]:3"},
    )
    await eventually(lambda: running.live.config.policy.max_epochs == 7)
    assert running.live.config.listen == HOST["listen"]
    assert running.live.config.limits.max_jobs == 8
    assert running.live.config.peers[Role.GUEST].address == "127.0.0.1:50052"
    running.write(policy={"max_epochs": 8})
    await eventually(lambda: running.live.config.policy.max_epochs == 8)
    warnings = [each.message for each in caplog.records if "only after a restart" in each.message]
    assert warnings == [
        "changes of these settings count only after a restart: listen, peers.guest.address, limits.max_jobs"
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy:\n  min_batch: none\n", "process.yaml: policy.min_batch: expected a whole number, not none (line 2)"),
        ("policy: {", "line 1, column 10: not valid YAML"),
        ("", "the file is empty"),
        (yaml.safe_dump(HOST | {"role": "guest"} | {"peers": {}}), "peers: host is missing"),
        (
            yaml.safe_dump(
                {"role": "coordinator", "peers": {"guest": "127.0.0.1:1", "host": "127.0.0.1:2"}}
                | {name: HOST[name] for name in ("listen", "state", "plaintext")}
            ),
            "role: is coordinator, but the host is running",
        ),
    ],
)
async def test_an_invalid_file_keeps_the_settings_and_is_named_once(
    running: Running, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    running.write(policy={"max_epochs": 7})
    await eventually(lambda: running.live.config.policy.max_epochs == 7)
    write_whole(running.path, text)
    await eventually(said(caplog, told))
    assert "the last settings stay in force" in caplog.text
    assert running.live.config.policy.max_epochs == 7
    running.write(policy={"max_epochs": 8})
    await eventually(lambda: running.live.config.policy.max_epochs == 8)
    assert caplog.text.count(told) == 1


async def test_a_missing_file_keeps_the_settings(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    running.path.unlink()
    await eventually(said(caplog, "process.yaml: no such file"))
    running.write(policy={"max_epochs": 8})
    await eventually(lambda: running.live.config.policy.max_epochs == 8)


async def test_a_switched_symbolic_link_is_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes replaces a link to a folder of all files."""
    monkeypatch.setattr(live_settings, "LOOK_SECONDS", 0.02)
    for name, n_epochs in (("old", 7), ("new", 8)):
        (tmp_path / name).mkdir()
        text = yaml.safe_dump(HOST | {"policy": {"max_epochs": n_epochs}, "state": str(tmp_path / "state")})
        (tmp_path / name / "process.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("old")
    path = tmp_path / "process.yaml"
    path.symlink_to("..data/process.yaml")
    running = Running(path)
    assert running.live.config.policy.max_epochs == 7
    async with watching(running):
        (tmp_path / "..data-new").symlink_to("new")
        (tmp_path / "..data-new").replace(tmp_path / "..data")
        await eventually(lambda: running.live.config.policy.max_epochs == 8)


async def test_a_file_that_is_still_being_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first half of a file is valid, and would grant what its second half forbids."""
    monkeypatch.setattr(live_settings, "LOOK_SECONDS", 0.02)
    looks: list[object] = []
    running = Running(tmp_path / "process.yaml", HOST | {"policy": {"max_scores_a_day": 5}})

    def stamp(path: Path) -> object:
        """Write a few more bytes at each look, as an editor of a long file does."""
        looks.append(None)
        if len(looks) < 30:
            path.write_text(yaml.safe_dump({**HOST, "policy": {"max_epochs": len(looks)}}))
            return len(looks)
        running.path.write_text(yaml.safe_dump(HOST | {"policy": {"max_scores_a_day": 3}}))
        return "complete"

    monkeypatch.setattr(live_settings, "file_stamp", stamp)
    async with watching(running):
        await eventually(lambda: running.live.config.policy.max_scores_a_day != 5)
    assert running.changes == ["policy.max_scores_a_day: from 5 to 3"]


async def test_the_environment_keeps_its_priority(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRILATERAL_POLICY__MAX_EPOCHS", "3")
    running.write(policy={"max_epochs": 8, "max_rounds": 9})
    await eventually(lambda: running.live.config.policy.max_rounds == 9)
    assert running.live.config.policy.max_epochs == 3


async def test_whoever_asks_gets_an_answer_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(live_settings, "LOOK_SECONDS", 10_000.0)
    running = Running(tmp_path / "process.yaml")
    async with watching(running):
        running.live.ask()
        await eventually(said(caplog, "nothing in it has changed that counts without a restart"))
        running.write(policy={"max_epochs": 8})
        running.live.ask()
        await eventually(lambda: running.live.config.policy.max_epochs == 8)
        write_whole(running.path, "policy: 1")
        for n_times in (1, 2):
            running.live.ask()
            await eventually(lambda n_times=n_times: caplog.text.count("cannot be used") == n_times)  # type: ignore[misc]


async def test_the_settings_in_force_are_noted_for_the_owner_only(running: Running) -> None:
    state, process = running.live.config.state, str(os.getpid())
    await eventually(lambda: settings_of(process, state) == RunningSettings(plain(running.live.config), {}))
    assert (state / NOTE).stat().st_mode & 0o777 == 0o600
    running.write(policy={"max_epochs": 8})
    await eventually(lambda: running.live.config.policy.max_epochs == 8)
    await eventually(lambda: settings_of(process, state) == RunningSettings(plain(running.live.config), {}))
    assert settings_of("1", state) is None
    (state / NOTE).write_text("[")
    assert settings_of(process, state) is None


async def test_the_variables_that_set_a_setting_are_noted_and_their_values_only_as_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRILATERAL_POLICY__MIN_BATCH", "120")
    monkeypatch.setenv("TRILATERAL_DATASETS__CUSTOMERS__ID", "customer")
    monkeypatch.setenv("TRILATERAL_STATE_KEY", "state.key")
    running = Running(tmp_path / "process.yaml")
    state, process = running.live.config.state, str(os.getpid())
    async with watching(running):
        await eventually(lambda: settings_of(process, state) is not None)
    noted = settings_of(process, state)
    assert noted is not None
    assert noted.variables == {
        "policy.min_batch": "TRILATERAL_POLICY__MIN_BATCH",
        "datasets.customers.id": "TRILATERAL_DATASETS__CUSTOMERS__ID",
        "state_key": "TRILATERAL_STATE_KEY",
    }


def test_the_values_of_a_label_are_compared_and_not_shown() -> None:
    label = {"column": "late", "positive": "more than 90 days", "negative": "never"}
    before = {"datasets": {"a": {"label": label}, "b": {"label": label}}}
    after = {"datasets": {"a": {"label": label | {"negative": "30 days"}}}}
    texts = [str(each) for each in differences(before, after)]
    assert texts[0] == 'datasets.a.label.negative: from "(not shown)" to "(not shown)"'
    assert texts[1].startswith("datasets.b: from {")
    assert "days" not in "".join(texts)
    classes = {"a": {"label": {"column": "late", "classes": ["never", "30 days", "more than 90 days"]}}}
    fewer = {"a": {"label": {"column": "late", "classes": ["never", "30 days", "60 days"]}}}
    (of_classes,) = differences({"datasets": classes}, {"datasets": fewer})
    assert str(of_classes) == 'datasets.a.label.classes: from "(not shown)" to "(not shown)"'
    assert "days" not in "".join(map(str, differences({"datasets": classes}, {"datasets": {}})))
    assert differences(without_labels(before), without_labels(before | after))[0].setting == "datasets.b"


def test_a_dataset_that_appears_or_disappears_is_one_difference() -> None:
    before, after = {"datasets": {"a": {"path": "a.csv"}}}, {"datasets": {"b": {"path": "b.csv"}}}
    assert [str(each) for each in differences(before, after)] == [
        'datasets.a: from {"path": "a.csv"} to null',
        'datasets.b: from null to {"path": "b.csv"}',
    ]
