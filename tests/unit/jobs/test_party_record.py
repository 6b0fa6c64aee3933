"""What a session of a job compares with the earlier sessions."""

from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trilateral.common.base.errors import DataError, PeerError
from trilateral.common.base.roles import Role
from trilateral.common.config.dataset import DatasetConfig
from trilateral.common.config.job import JobConfig
from trilateral.common.data.tables.table import PartyTable, read_table
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.party_record import PartyRecord, settings_digest
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import BeginRound, FinishJob, RoundKey, RoundShares, StepTaken
from trilateral.common.protocol.row_roles import Purpose
from trilateral.common.rpc.codec import JobKey

OF_0_1_0 = (
    '{"id":"id","id_form":{"spaces":true,"unicode":true,"decimals":true,"case":false,"zeros":false},"label":null,'
    '"features":null,"exclude":[],"categorical":[],"preprocessing":{"fill":"median","missing_indicator":false,'
    '"clip":[0.01,0.99],"standardise":true,"rare":0.01,"whiten":true,"columns":{}},"jobs":["*"]}'
)
"""The settings of a dataset with all defaults, as 0.1.0 digested them."""


def test_the_settings_of_a_job_that_0_1_0_began_have_the_digest_of_then() -> None:
    inner = blake2b(OF_0_1_0.encode(), digest_size=32).digest()
    assert settings_digest(DatasetConfig(path=Path("t.csv"))) == blake2b(inner, digest_size=32).digest()


def test_a_column_with_settings_of_0_1_0_has_the_digest_of_then() -> None:
    own = '{"a":{"fill":0.0,"missing_indicator":false,"clip":[0.01,0.99],"standardise":true}}'
    inner = blake2b(OF_0_1_0.replace('"columns":{}', f'"columns":{own}').encode(), digest_size=32).digest()
    dataset = DatasetConfig.model_validate({"path": "t.csv", "preprocessing": {"columns": {"a": {"fill": 0}}}})
    assert settings_digest(dataset) == blake2b(inner, digest_size=32).digest()


@pytest.mark.parametrize(
    "settings",
    [
        {"id": ["a", "b"]},
        {"missing": []},
        {"missing": ["NA"]},
        {"repeated_ids": "first"},
        {"preprocessing": {"constant": "refuse"}},
        {"preprocessing": {"limits": [0, None]}},
        {"preprocessing": {"transform": "sqrt"}},
        {"preprocessing": {"columns": {"a": {"transform": "sqrt"}}}},
        {"preprocessing": {"spline": {}}},
        {"preprocessing": {"interactions": [["a", "b"]]}},
        {"preprocessing": {"encoding": "frequency"}},
        {"preprocessing": {"columns": {"a": {"encoding": ["x", "y"]}}}},
        {"preprocessing": {"columns": {"a": {"spline": {}}}}},
        {"preprocessing": {"columns": {"a": {"limits": [0, 1]}}}},
        {"exclude": ["a"]},
    ],
)
def test_every_change_of_the_settings_changes_their_digest(settings: dict[str, Any]) -> None:
    plain = DatasetConfig(path=Path("t.csv"))
    assert settings_digest(DatasetConfig.model_validate({"path": "t.csv", **settings})) != settings_digest(plain)
    assert settings_digest(plain) == settings_digest(plain.model_copy(update={"path": Path("u.parquet")}))


LABEL_OF_0_1_0 = '{"column":"label","positive":"1","negative":"0","calibration":"platt","threshold":0.5}'


def test_a_label_without_weights_has_the_digest_of_0_1_0() -> None:
    inner = blake2b(OF_0_1_0.replace('"label":null', f'"label":{LABEL_OF_0_1_0}').encode(), digest_size=32).digest()
    assert settings_digest(labelled()) == blake2b(inner, digest_size=32).digest()


@pytest.mark.parametrize("weights", [{"weight": "c"}, {"class_weight": "balanced"}])
def test_weights_of_rows_change_the_digest_of_the_settings(weights: dict[str, Any]) -> None:
    assert settings_digest(labelled(**weights)) != settings_digest(labelled())


def labelled(**label: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"path": "t.csv", "label": label})


KEY = JobKey("credit", bytes(16))
STEP = np.zeros(2)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path, Role.HOST, 90)) as journal:
        journal.add(KEY.run_id, JobConfig(name=KEY.name, dataset="made"))
        yield journal


def session(journal: Journal) -> PartyRecord:
    """The record of a new session, which knows what the journal has."""
    return PartyRecord(journal, Role.HOST, KEY, KEY.run_id, journal.find(KEY.run_id))


TABLE_DIGEST_OF_0_1_0 = "907102828cb27f7675721d56d73c120c654ee184af8604e60c26ac20b604a52e"
"""Of the table that `small_table` reads, as 0.1.0 computed it with pandas 3."""


def small_table(folder: Path, last: str = "north") -> tuple[PartyTable, DatasetConfig]:
    path = folder / "t.csv"
    path.write_text(f"id,a,c\n3,1.5,north\n1,,\n2,-2,south\n10,0,{last}\n")
    dataset = DatasetConfig(path=path, categorical=["c"])
    return read_table(dataset), dataset


def test_a_job_that_0_1_0_began_continues_with_its_table_alone(journal: Journal, tmp_path: Path) -> None:
    journal.set_facts(KEY.run_id, {"table": bytes.fromhex(TABLE_DIGEST_OF_0_1_0)})
    session(journal).check_table(*small_table(tmp_path))
    with pytest.raises(DataError, match="the table has changed since the job began"):
        session(journal).check_table(*small_table(tmp_path, last="south"))


@pytest.mark.parametrize("change", [("1.5", "1.25"), ("north", "nord"), ("-2,south", "-2,north"), ("a,c", "b,c")])
def test_every_change_of_a_table_is_noticed_in_the_next_session(
    change: tuple[str, str], journal: Journal, tmp_path: Path
) -> None:
    table, dataset = small_table(tmp_path)
    first = session(journal)
    first.check_table(table, dataset)
    begin(first, 1, evaluates=False)
    session(journal).check_table(*small_table(tmp_path))
    dataset.path.write_text(dataset.path.read_text().replace(*change))
    with pytest.raises(DataError, match="the table has changed since the job began"):
        session(journal).check_table(read_table(dataset), dataset)


def test_the_start_and_the_columns_are_in_the_journal_with_the_first_round(journal: Journal) -> None:
    first = session(journal)
    first.check_columns(np.ones((3, 2)))
    start = first.start(lambda: STEP + 1)
    assert start is not None
    begin(first, 1, evaluates=False)
    resumed = session(journal)
    np.testing.assert_array_equal(resumed.start(lambda: STEP), start)
    with pytest.raises(DataError, match="training columns have changed"):
        resumed.check_columns(np.full((3, 2), 2.0))


def test_the_roles_of_rows_are_those_of_the_first_session(journal: Journal) -> None:
    roles = np.array([0, 1, 255, 0], dtype=np.uint8)
    first = session(journal)
    first.keep_row_roles(Purpose.SPLIT, roles)
    begin(first, 1, evaluates=False)
    resumed = session(journal)
    np.testing.assert_array_equal(resumed.row_roles(Purpose.SPLIT, 4), roles)
    for purpose, n_rows in [(Purpose.SPLIT, 5), (Purpose.FOLDS, 4)]:
        with pytest.raises(PeerError, match="no longer knows what the rows are for: start the job again"):
            resumed.row_roles(purpose, n_rows)


def test_a_dataset_without_a_split_has_the_digest_of_0_1_0_and_one_with_it_another() -> None:
    plain = DatasetConfig(path=Path("t.csv"))
    split = DatasetConfig.model_validate({"path": "t.csv", "split": {"column": "s", "train_until": "2023-12-31"}})
    assert settings_digest(split) != settings_digest(plain)


def test_before_the_first_round_another_session_begins_anew(journal: Journal) -> None:
    session(journal).start(lambda: STEP + 1)
    np.testing.assert_array_equal(session(journal).start(lambda: STEP), STEP)


# --- the points at which the host has scored its rows


def begin(record: PartyRecord, number: int, *, evaluates: bool) -> RoundKey:
    key = RoundKey(number, 1)
    asked = BeginRound(key, STEP, Batch(1), gradient=True, evaluate_at=STEP if evaluates else None)
    record.write(StepTaken(asked))
    return key


def test_a_point_of_an_earlier_round_is_over_whatever_became_of_it(journal: Journal) -> None:
    record = session(journal)
    assert record.n_scored_points([]) == 0
    for number in range(1, 6):
        begin(record, number, evaluates=number in (2, 4))
    assert session(journal).n_scored_points([]) == 2


def test_the_newest_point_counts_as_scored_once_the_ledger_has_it(journal: Journal) -> None:
    record = session(journal)
    record.keep_newest_point(begin(record, 1, evaluates=True), "first")
    key = begin(record, 2, evaluates=True)
    assert session(journal).n_scored_points(["first"]) == 1  # ended before the host had computed its scores
    record.keep_newest_point(key, "second")
    assert session(journal).n_scored_points(["first"]) == 1  # ended before the ledger counted the point
    assert session(journal).n_scored_points(["first", "second"]) == 2


def test_the_result_is_a_point_too(journal: Journal) -> None:
    record = session(journal)
    begin(record, 1, evaluates=False)
    record.write(StepTaken(FinishJob(2, STEP, 0.5, 1, "converged", None)))
    assert session(journal).n_scored_points([]) == 0
    record.keep_newest_point(RoundKey(2, 1), "result")
    assert session(journal).n_scored_points(["result"]) == 1


SHARES = np.ones(2, dtype=np.uint64)


@pytest.mark.parametrize(
    "asked",
    [
        BeginRound(RoundKey(1, 1), STEP, Batch(1, 0), gradient=True, shares=RoundShares(None)),
        FinishJob(2, STEP, 0.5, 1, "converged", None, SHARES),
    ],
    ids=["round", "end"],
)
def test_no_share_reaches_the_journal(journal: Journal, asked: BeginRound | FinishJob) -> None:
    """With a journal that was put back, a share would meet another mask."""
    record = session(journal)
    with pytest.raises(ValueError, match="must not be written to the journal"):
        record.write(StepTaken(asked))
    assert not [each for each in journal.all() if each.rounds]
