"""What `trilateral check` says about folds before a job starts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.integration.test_folds_of_a_party import N_ROWS, by, owned_by
from tests.integration.test_split_column import changed
from trilateral.common.base.roles import Role
from trilateral.common.checks.finding import Level
from trilateral.common.checks.tables import check_tables
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import ProcessConfig


def said(config: ProcessConfig, job: JobConfig | None) -> dict[Level, str]:
    found = list(check_tables(config, job))
    return {level: "\n".join(each.text for each in found if each.level is level) for level in Level}


def change_keys(folder: Path, role: Role, keys: Any) -> None:
    path = folder / f"{role}.csv"
    pd.read_csv(path, dtype={"id": str}).assign(key=keys).to_csv(path, index=False)


@pytest.mark.parametrize(("owner", "fold_by"), [(Role.GUEST, "label"), (Role.HOST, "group"), (Role.GUEST, "time")])
def test_the_owner_is_told_the_sizes_of_the_folds(owner: Role, fold_by: str, tmp_path: Path) -> None:
    configs = owned_by(owner, fold_by, tmp_path)
    found = said(configs[owner], by(fold_by))
    assert not found[Level.PROBLEM]
    assert f"before alignment: 3 folds by {fold_by} have " in found[Level.OK]
    if fold_by == "label":
        assert "3 folds by label have 200 training rows" in found[Level.OK]
    else:
        what = "40 groups" if fold_by == "group" else "40 different times"
        assert f"the column in `folds` has {what}, at most " in said(configs[owner], None)[Level.OK]
    other = Role.HOST if owner is Role.GUEST else Role.GUEST
    assert "the other party decides the folds of the job" in said(configs[other], by(fold_by))[Level.OK]


def test_small_folds_are_refused_as_in_the_job(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "group", tmp_path, min_batch=100)
    change_keys(tmp_path, Role.HOST, np.minimum(np.arange(N_ROWS) // 4, 2))
    assert "the minimum is 100; a fold has 4" in said(configs[Role.HOST], by("group"))[Level.PROBLEM]


@pytest.mark.parametrize(
    ("fold_by", "keys", "problem"),
    [
        ("group", np.arange(N_ROWS) % 2, "have 2 groups, too few for 3 folds"),
        ("time", ["2023-01-01"] * N_ROWS, "too many training rows have the same time for 3 folds"),
        ("time", ["30.6.2023", *range(1, N_ROWS)], "has no time in 1 of 600 training rows"),
    ],
)
def test_what_gives_no_folds_is_a_problem_of_the_job(fold_by: str, keys: object, problem: str, tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, fold_by, tmp_path)
    change_keys(tmp_path, Role.HOST, keys)
    assert problem in said(configs[Role.HOST], by(fold_by))[Level.PROBLEM]


def test_without_a_job_rows_without_a_value_are_named(tmp_path: Path) -> None:
    configs = owned_by(Role.HOST, "time", tmp_path)
    change_keys(tmp_path, Role.HOST, ["soon", "later", *range(2, N_ROWS)])
    found = said(configs[Role.HOST], None)
    assert "the column in `folds` has no time in 2 rows: jobs with `fold_by: time` are refused" in found[Level.WARNING]
    change_keys(tmp_path, Role.HOST, "never")
    assert "the column in `folds` has 0 different times" in said(configs[Role.HOST], None)[Level.OK]


def test_a_choice_by_auc_is_checked_against_the_ledger_and_the_scores_of_a_day(tmp_path: Path) -> None:
    configs = owned_by(Role.GUEST, "label", tmp_path)
    job = by("random", choose="auc")
    strict = {"share_fold_scores": True, "min_columns_per_point": 3, "max_scores_a_day": 2399}
    found = said(changed(configs[Role.HOST], strict), job)[Level.PROBLEM]
    assert "policy.min_columns_per_point" in found
    assert "4 more needed" in found
    assert "2400 needed" in found
    assert "policy.share_fold_scores" in said(configs[Role.HOST], job)[Level.PROBLEM]
