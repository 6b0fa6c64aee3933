"""Sets of training rows: which ones differ in too few rows, and what the file says about them."""

import json
from pathlib import Path

import numpy as np
import pytest

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, PolicyError, notes
from trilateral.common.base.roles import Role
from trilateral.common.config.process import Policy
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.trained_rows import MAX_SETS, TRAINED_ROWS, TrainedRows

IDS = [f"person-{row}" for row in range(2000)]
LABELS: FloatVector = np.where(np.arange(2000) % 3 == 0, 1.0, -1.0)
DEFAULT = Policy()


@pytest.fixture
def trained(tmp_path: Path) -> TrainedRows:
    trained = TrainedRows(tmp_path, Role.GUEST)
    trained.add(trained.sketch(Ids.of(IDS), LABELS), 2000, DEFAULT)
    return trained


def add(trained: TrainedRows, ids: list[str], labels: FloatVector, policy: Policy = DEFAULT) -> None:
    rows = trained.sketch(Ids.of(ids), labels)
    trained.check(rows, len(ids), policy)
    trained.add(rows, len(ids), policy)


def test_the_same_rows_are_always_allowed_in_any_order(trained: TrainedRows) -> None:
    order = np.random.default_rng(0).permutation(2000)
    add(trained, IDS, LABELS)
    add(trained, [IDS[row] for row in order], LABELS[order])


@pytest.mark.parametrize("n_changed", [1, 2, 10, 60])
def test_rows_that_are_gone_are_refused_while_they_are_few(trained: TrainedRows, n_changed: int) -> None:
    with pytest.raises(PolicyError, match=r"the guest refuses the job under policy\.min_changed_rows") as caught:
        add(trained, IDS[n_changed:], LABELS[n_changed:])
    assert str(n_changed) not in str(caught.value).replace("100", "")
    (note,) = notes(caught.value)
    assert note.startswith("about ")


def test_a_new_row_and_a_changed_label_are_refused(trained: TrainedRows) -> None:
    with pytest.raises(PolicyError):
        add(trained, [*IDS, "somebody"], np.append(LABELS, 1.0))
    changed = LABELS.copy()
    changed[7] *= -1
    with pytest.raises(PolicyError):
        add(trained, IDS, changed)


@pytest.mark.parametrize("seed", range(20))
def test_enough_changed_rows_are_allowed(tmp_path: Path, seed: int) -> None:
    trained = TrainedRows(tmp_path, Role.HOST)
    for start in (0, 150):
        rows = trained.sketch(Ids.of([f"{seed}-{one}" for one in IDS[start:]]), None)
        trained.add(rows, 2000, DEFAULT)


def test_a_policy_of_single_rows_allows_all(trained: TrainedRows) -> None:
    add(trained, IDS[1:], LABELS[1:], Policy(min_changed_rows=0))


def test_the_estimate_is_close_to_the_number_of_changed_rows(trained: TrainedRows) -> None:
    every = trained.sketch(Ids.of(IDS), LABELS).astype(np.int64)
    for n_changed in (1, 100, 1000):
        found = []
        for start in range(0, 2000 - n_changed, 97):
            kept = [*IDS[:start], *IDS[start + n_changed :]]
            rest = trained.sketch(Ids.of(kept), np.delete(LABELS, np.s_[start : start + n_changed]))
            found.append(int(np.sum((every - rest) ** 2)))
        assert np.mean(found) == pytest.approx(n_changed, rel=0.1)
        assert n_changed > 1 or set(found) == {1}


def test_another_process_compares_with_the_same_file(trained: TrainedRows, tmp_path: Path) -> None:
    other = TrainedRows(tmp_path, Role.GUEST)
    with pytest.raises(PolicyError):
        add(other, IDS[1:], LABELS[1:])


def test_the_file_holds_no_id_and_is_the_owners_alone(trained: TrainedRows, tmp_path: Path) -> None:
    path = tmp_path / TRAINED_ROWS
    assert "person" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_state_folders_have_different_sketches(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    one, other = (TrainedRows(folder, Role.HOST).sketch(Ids.of(IDS), None) for folder in folders)
    assert not np.array_equal(one, other)


def test_the_newest_sets_are_kept(trained: TrainedRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / TRAINED_ROWS
    content = json.loads(path.read_text())
    content["sets"] = content["sets"] * MAX_SETS
    path.write_text(json.dumps(content))
    add(trained, IDS[1000:], LABELS[1000:])
    assert len(json.loads(path.read_text())["sets"]) <= MAX_SETS


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "key": "ab", "sets": []}'])
def test_a_damaged_file_lets_no_training_begin(trained: TrainedRows, tmp_path: Path, content: str) -> None:
    (tmp_path / TRAINED_ROWS).write_text(content)
    with pytest.raises(ConfigError, match="list of trained rows is damaged"):
        add(trained, IDS, LABELS)
