"""What a curious guest, or a coordinator, makes of the scores that a choice by AUC opens: the host's columns.

The guest knows the columns of some rows of a fold from elsewhere. On these it fits the map from the scores of a row,
one for each penalty, to the host's columns of the row. Each attack wins without the protection and loses with it. The
guest's own file permits everything.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.protocol.test_shares_training import make_job, train
from tests.support.three_machines import Outcome, Tables, make_tables
from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import PolicyError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Policy
from trilateral.common.jobs.account import Account
from trilateral.common.jobs.job_account import MAX_REPEATS, JobAccount
from trilateral.common.jobs.journal import Journal
from trilateral.common.jobs.ledger import Ledger
from trilateral.common.jobs.party_record import PartyRecord
from trilateral.common.jobs.quota import ScoreQuota
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.protocol.batches import Batch, Batches
from trilateral.common.protocol.evaluation import HoldoutMetrics, measure
from trilateral.common.protocol.messages import BeginRound, ElementPiece, Kind, RoundKey, ScoresDue, StepTaken
from trilateral.common.rpc.codec import JobKey
from trilateral.common.shares.scores import OPENED_BITS
from trilateral.coordinator import training as coordinator_training
from trilateral.coordinator.plan import GivenUp, Probe, Search
from trilateral.guest_party import shares as guest_shares

N_ROWS, N_HOST, N_FOLDS, N_KNOWN = 600, 4, 2, 60
ALLOWED = 2
"""Points for four columns under the default policy."""


def job_with(n_penalties: int) -> JobConfig:
    search = [{"l2": l2} for l2 in np.geomspace(3, 1e-4, n_penalties)]
    return make_job(search=search, folds=N_FOLDS, choose="auc", holdout=0.0, epochs=60, tolerance=1e-9)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[FloatVector]:
    """What the guest is told: the scores of a fold in each round that opens any."""
    scores: list[FloatVector] = []

    def record(values: FloatVector, labels: FloatVector, *arguments: Any) -> HoldoutMetrics:
        scores.append(values)
        return measure(values, labels, *arguments)

    monkeypatch.setattr(guest_shares, "measure", record)
    return scores


@pytest.fixture(params=[Policy(share_fold_scores=True), Policy(min_columns_per_point=1)], ids=["default", "lax"])
def account(request: pytest.FixtureRequest, tmp_path: Path) -> Account:
    return Account(Ledger(tmp_path, Role.HOST), request.param, "made", Role.HOST)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path, Role.HOST, 90)) as journal:
        yield journal


def job_account(
    job: JobConfig, tables: Tables, account: Account, journal: Journal, session: bytes = bytes(16)
) -> JobAccount:
    """Return the counts of a session of one job at the host."""
    job_id = bytes(16)
    known = journal.find(job_id)
    if known is None:
        journal.add(job_id, job)
    record = PartyRecord(journal, Role.HOST, JobKey(job.name, session), job_id, known)
    return JobAccount(job, session, record, lambda: account, tables.host, add_rows=lambda policy: None)


def begun(number: int) -> StepTaken:
    return StepTaken(BeginRound(RoundKey(number, 1), np.zeros(0), Batch(1, fold=1), gradient=True, peer_columns=1))


def openings(outcome: Outcome) -> list[ScoresDue]:
    return [message for *_, message in outcome.traffic if isinstance(message, ScoresDue) and message.fold]


class TestTheGuest:
    def explained(self, n_penalties: int, seen: list[FloatVector], key: PrivateKey) -> float:
        """Return the share of the variance of the host's columns that the guest explains, over the unknown rows."""
        job = job_with(n_penalties)
        tables = make_tables(job, n_rows=N_ROWS, n_host=N_HOST)
        train(job, tables, key)
        shares = []
        for fold in range(N_FOLDS):
            rows = Batches.of(job, N_ROWS).part_rows(fold)
            own = np.asarray(tables.guest.block.columns)[rows]
            columns = np.asarray(tables.host.block.columns)[rows]
            scores = seen[fold * n_penalties : (fold + 1) * n_penalties]
            known = np.column_stack([*scores, own, np.ones(len(rows))])
            fitted = np.linalg.lstsq(known[:N_KNOWN], columns[:N_KNOWN])[0]
            errors = known[N_KNOWN:] @ fitted - columns[N_KNOWN:]
            shares.append(1 - np.mean(errors.var(axis=0) / columns[N_KNOWN:].var(axis=0)))
        return float(np.mean(shares))

    def test_solves_for_the_hosts_columns_with_as_many_penalties(
        self, seen: list[FloatVector], private_key: PrivateKey
    ) -> None:
        assert self.explained(N_HOST, seen, private_key) > 0.998

    def test_does_not_with_the_penalties_that_the_host_permits(
        self, seen: list[FloatVector], private_key: PrivateKey, tmp_path: Path, journal: Journal
    ) -> None:
        account = Account(Ledger(tmp_path, Role.HOST), Policy(share_fold_scores=True), "made", Role.HOST)
        tables = make_tables(job_with(1), n_rows=N_ROWS, n_host=N_HOST)
        with pytest.raises(PolicyError, match=r"policy.min_columns_per_point: .* 3 more needed"):
            job_account(job_with(ALLOWED + 1), tables, account, journal).open(ScoreQuota(tmp_path, 10**6))
        job_account(job_with(ALLOWED), tables, account, journal).open(ScoreQuota(tmp_path, 10**6))
        assert self.explained(ALLOWED, seen, private_key) < 0.75

    def test_reads_no_more_than_18_bits_of_a_score_whatever_it_sends(self, private_key: PrivateKey) -> None:
        job = job_with(1)
        outcome = train(job, make_tables(job, n_rows=N_ROWS, n_host=N_HOST), private_key)
        alone = {
            message.key.round
            for *_, message in outcome.traffic
            if isinstance(message, BeginRound) and message.batch.held_out
        }
        opened = [
            message.elements
            for sender, receiver, message in outcome.traffic
            if isinstance(message, ElementPiece)
            and (sender, receiver, message.kind) == (Role.HOST, Role.GUEST, Kind.MASKED_RESIDUAL)
            and message.key.round in alone
        ]
        assert sum(map(len, opened)) >= N_ROWS
        assert max(int(each.max()) for each in opened) < 2**OPENED_BITS


class TestTheCoordinator:
    """It asks for one fold again and again, at points at which a score is a column of the host."""

    job = job_with(N_HOST)

    def attack(self, tables: Tables, key: PrivateKey, monkeypatch: pytest.MonkeyPatch, job: JobConfig = job) -> Outcome:
        n_columns = tables.joined.columns.shape[1]

        def search(*arguments: Any) -> Search:
            for column in range(N_HOST):
                yield Probe(np.eye(n_columns)[column], Batch(1, fold=1, held_out=True), gradient=False)
            return GivenUp("the coordinator has what it wants")

        monkeypatch.setattr(coordinator_training, "cross_validated_search", search)
        return train(job, tables, key)

    def test_shows_the_guest_the_hosts_columns_of_a_fold(
        self, seen: list[FloatVector], private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables = make_tables(self.job, n_rows=N_ROWS, n_host=N_HOST)
        self.attack(tables, private_key, monkeypatch)
        rows = Batches.of(self.job, N_ROWS).part_rows(0)
        np.testing.assert_allclose(np.column_stack(seen), np.asarray(tables.host.block.columns)[rows], atol=0.01)

    def test_is_counted_for_each_opening_in_all_sessions(
        self, account: Account, journal: Journal, private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tables = make_tables(self.job, n_rows=N_ROWS, n_host=N_HOST)
        due = openings(self.attack(tables, private_key, monkeypatch))
        assert [each.fold for each in due] == [1] * N_HOST
        permitted = account.max_points(N_HOST)
        for number, each in enumerate(due):
            session = job_account(self.job, tables, account, journal, session=bytes(15) + bytes([number]))
            if number < permitted:
                session.count(each)
                continue
            with pytest.raises(PolicyError, match="policy.min_columns_per_point"):
                session.count(each)
        assert len(account.ledger.entry("made").points) == permitted

    @pytest.mark.parametrize("n_penalties", [1, N_HOST - 1])
    def test_cannot_ask_for_a_fold_more_often_than_the_job_has_penalties(
        self, n_penalties: int, seen: list[FloatVector], private_key: PrivateKey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = job_with(n_penalties)
        outcome = self.attack(make_tables(job, n_rows=N_ROWS, n_host=N_HOST), private_key, monkeypatch, job)
        assert f"with fold 1 alone once more: this job compares {n_penalties} penalties" in outcome.ended.reason
        assert len(seen) == n_penalties

    def test_gets_few_repeats_of_a_round_at_no_cost(self, account: Account, journal: Journal) -> None:
        """It asks for the same round at other weights, in this session and in later ones."""
        tables = make_tables(self.job, n_rows=N_ROWS, n_host=N_HOST)
        due = ScoresDue(RoundKey(7, 1), np.zeros(0), fold=1)
        for number in range(1 + MAX_REPEATS):
            job_account(self.job, tables, account, journal, session=bytes(15) + bytes([number // 2])).count(due)
        assert len(account.ledger.entry("made").points) == 1
        session = job_account(self.job, tables, account, journal)
        for _ in range(account.max_points(N_HOST) - 1):
            session.count(due)
        with pytest.raises(PolicyError, match="policy.min_columns_per_point"):
            session.count(due)
        assert len(account.ledger.entry("made").points) == account.max_points(N_HOST)

    @pytest.mark.parametrize("is_killed", [False, True])
    def test_cannot_repeat_a_round_for_free_after_an_earlier_one(
        self, account: Account, journal: Journal, *, is_killed: bool
    ) -> None:
        """The earlier round may have shown something else this time, and then leads to other weights."""
        tables = make_tables(self.job, n_rows=N_ROWS, n_host=N_HOST)
        session = job_account(self.job, tables, account, journal)
        due = ScoresDue(RoundKey(7, 1), np.zeros(0), fold=1)
        session.count(due)
        session.count(begun(6))
        if is_killed:
            session = job_account(self.job, tables, account, journal)
        session.count(due)
        assert len(account.ledger.entry("made").points) == 2

    def test_opens_other_folds_at_no_further_cost(self, account: Account, journal: Journal) -> None:
        """No row has a further score then."""
        tables = make_tables(self.job, n_rows=N_ROWS, n_host=N_HOST)
        session = job_account(self.job, tables, account, journal)
        for fold in (1, 2):
            session.count(ScoresDue(RoundKey(2, 1), np.zeros(0), fold))
        assert len(account.ledger.entry("made").points) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_round_that_begins_again_counts_once(*, is_restarted: bool, account: Account, journal: Journal) -> None:
    """Within a session after a timeout, or in another session after a restart."""
    job = job_with(ALLOWED)
    tables = make_tables(job, n_rows=N_ROWS, n_host=N_HOST)
    counted = job_account(job, tables, account, journal)
    for fold in (1, 2):
        for number in range(account.max_points(N_HOST)):
            due = ScoresDue(RoundKey(10 * fold + number, 1), np.zeros(0), fold)
            counted.count(due)
            if is_restarted:
                counted = job_account(job, tables, account, journal)
            counted.count(begun(due.key.round))
            counted.count(due)
            counted.count(begun(due.key.round + 1))
    assert len(account.ledger.entry("made").points) == account.max_points(N_HOST)


@pytest.mark.parametrize("role", PARTIES)
def test_of_a_choice_by_loss_no_score_is_opened(role: Role, private_key: PrivateKey) -> None:
    job = make_job(search=[{"l2": 0.1}], folds=N_FOLDS, holdout=0.0)
    outcome = train(job, make_tables(job, n_rows=200), private_key)
    assert not openings(outcome)
    assert outcome.results[role].compared == () or outcome.results[role].compared[0].auc is None
