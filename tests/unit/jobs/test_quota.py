"""The counter of scores is exact, is kept on disk for each UTC day, and allows nothing if it cannot be trusted."""

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from trilateral.common.base.errors import ConfigError, PolicyError
from trilateral.common.base.roles import Role
from trilateral.common.config.process import UNLIMITED
from trilateral.common.jobs.policy import JOB, PREDICTION, check_counted, check_scores, spend_scores
from trilateral.common.jobs.quota import COUNTER, ScoreQuota, Today

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def quota_at(state: Path, time: datetime, limit: int = 100) -> ScoreQuota:
    return ScoreQuota(state, limit, lambda: time)


def test_scores_are_counted_up_to_the_limit_and_across_restarts(tmp_path: Path) -> None:
    assert quota_at(tmp_path, NOON).spend(60) == 40
    restarted = quota_at(tmp_path, NOON + timedelta(hours=11))
    assert restarted.spend(41) is None
    assert restarted.today() == Today(NOON.date(), 60)
    assert restarted.spend(40) == 0
    assert restarted.spend(1) is None
    assert restarted.spend(0) == 0


def test_the_day_ends_at_midnight_of_utc(tmp_path: Path) -> None:
    quota_at(tmp_path, NOON).spend(100)
    late = timezone(timedelta(hours=-5))
    assert quota_at(tmp_path, datetime(2026, 3, 1, 18, 59, tzinfo=late)).spend(1) is None
    assert quota_at(tmp_path, datetime(2026, 3, 1, 19, 0, tzinfo=late)).spend(1) == 99


def test_a_clock_that_is_set_back_does_not_restore_a_quota(tmp_path: Path) -> None:
    quota_at(tmp_path, NOON).spend(100)
    assert quota_at(tmp_path, NOON - timedelta(days=3)).spend(1) is None


def test_a_limit_that_was_lowered_counts_what_was_given_before(tmp_path: Path) -> None:
    quota_at(tmp_path, NOON).spend(80)
    with pytest.raises(PolicyError, match="the maximum is 50 scores a day; 0 left until"):
        check_scores(1, quota_at(tmp_path, NOON, limit=50), JOB)


def test_concurrent_threads_stay_within_the_limit(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: quota_at(tmp_path, NOON).spend(3), range(50)))
    assert sorted((left for left in taken if left is not None), reverse=True) == list(range(97, 0, -3))


def _take_in_a_process(state: Path) -> list[int | None]:
    return [quota_at(state, NOON).spend(1) for _ in range(60)]


def test_concurrent_processes_stay_within_the_limit(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_take_in_a_process, [tmp_path, tmp_path])
    assert sorted(left for left in first + second if left is not None) == list(range(100))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"day": "2026-03-01"}',
        '{"day": 1, "given": 1}',
        '{"day": "1 March", "given": 1}',
        '{"day": "2026-03-01", "given": -1}',
        '{"day": "2026-03-01", "given": 1.5}',
        '{"day": "2026-03-01", "given": true}',
    ],
)
def test_a_damaged_counter_gives_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / COUNTER).write_text(content)
    with pytest.raises(ConfigError, match="the daily counter is damaged"):
        quota_at(tmp_path, NOON).spend(1)
    assert (tmp_path / COUNTER).read_text() == content


def test_a_counter_that_cannot_be_written_gives_nothing(tmp_path: Path) -> None:
    quota_at(tmp_path, NOON).spend(1)
    (tmp_path / COUNTER).unlink()
    (tmp_path / COUNTER).mkdir()
    with pytest.raises(ConfigError, match="cannot be read or written"):
        quota_at(tmp_path, NOON).spend(1)
    with pytest.raises(ConfigError, match="cannot be read or written"):
        quota_at(tmp_path / "not there", NOON).spend(1)


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    quota_at(tmp_path, NOON).spend(7)
    path = tmp_path / COUNTER
    assert json.loads(path.read_text()) == {"day": "2026-03-01", "given": 7}
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_a_refusal_names_the_setting_the_rest_and_the_end_of_the_day(tmp_path: Path) -> None:
    quota = quota_at(tmp_path, NOON)
    assert spend_scores(90, quota, PREDICTION) == 10
    with pytest.raises(PolicyError) as refusal:
        spend_scores(11, quota, PREDICTION)
    assert str(refusal.value) == (
        "the host refuses the prediction under policy.max_scores_a_day: the maximum is 100 scores a day; 10 left until "
        "2026-03-02 00:00 UTC, 11 needed; 101 would allow it today"
    )
    assert spend_scores(0, quota_at(tmp_path, NOON, limit=101), PREDICTION) == 11
    check_scores(10, quota, PREDICTION)
    assert quota.today().given == 90


def test_without_a_limit_everything_is_counted_and_nothing_is_refused(tmp_path: Path) -> None:
    quota = quota_at(tmp_path, NOON, limit=UNLIMITED)
    for _ in range(3):
        assert spend_scores(UNLIMITED, quota, PREDICTION) is not None
    check_scores(10**9, quota, JOB)
    check_counted(quota, Role.HOST, JOB)
    assert quota.today().given == 3 * UNLIMITED
    with pytest.raises(PolicyError, match="0 left"):  # once the owner sets a limit again
        check_scores(1, quota_at(tmp_path, NOON), JOB)
