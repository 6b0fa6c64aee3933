"""A coordinator waits for answers, a party for any message. Each knows what to do if no message comes."""

import numpy as np
import pytest
from gmpy2 import mpz

from trilateral.common.base.errors import PeerError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.process import Limits
from trilateral.common.jobs.patience import STEPS, Patience, Question
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import BeginRound, FinishJob, OpenJob, RoundKey

LIMITS = Limits(peer_timeout=10, round_timeout=100)
OFFER = OpenJob(JobConfig(name="credit", dataset="credit"), mpz(15), Role.HOST)
FINISH = FinishJob(3, np.zeros(2), 0.5, 1, "converged", 0.5)


def begin(round_number: int, attempt: int = 1) -> BeginRound:
    return BeginRound(RoundKey(round_number, attempt), np.zeros(2), Batch(1, 0), gradient=True)


class Clock:
    """Stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leader(clock: Clock) -> Patience:
    return Patience(Role.COORDINATOR, LIMITS, clock)


def seconds_to_the_end(patience: Patience, clock: Clock) -> float:
    """How long a process waits that only looks at alarms, as the runner does."""
    start = clock.now
    while not patience.is_over(alarm := patience.alarm()):
        clock.now = alarm
        patience.asked_peers()
    return alarm - start


@pytest.mark.parametrize(("peer_timeout", "seconds"), [(60, 2), (15, 1.5), (0.5, 1)])
def test_a_process_that_waits_asks_every_two_seconds_or_sooner_for_a_short_timeout(
    peer_timeout: float, seconds: float, clock: Clock
) -> None:
    assert Patience(Role.HOST, Limits(peer_timeout=peer_timeout), clock).alarm() == seconds


def test_the_last_alarm_is_at_the_end(leader: Patience, clock: Clock) -> None:
    leader.ask(begin(1))
    clock.now = 99.5
    leader.asked_peers()
    assert leader.alarm() == 100
    assert leader.is_over(100)
    assert not leader.is_over(99)


def test_the_coordinators_time_begins_with_each_new_question(leader: Patience, clock: Clock) -> None:
    for question in (OFFER, begin(1), begin(1, attempt=2), begin(2), FINISH):
        clock.now += 60
        leader.ask(question)
        clock.now += 10  # asking the other party is no new question
        leader.ask(question)
        leader.wait()
        assert leader.is_over(clock.now + 90)
        assert not leader.is_over(clock.now + 89)


def test_a_round_gets_ten_times_the_longest_recent_one_and_twice_that_when_begun_again(clock: Clock) -> None:
    patience = Patience(Role.COORDINATOR, Limits(peer_timeout=10, round_timeout=600), clock)
    patience.ask(begin(1))
    assert seconds_to_the_end(patience, clock) == 600  # nothing is known yet
    patience.ask(begin(1, attempt=2))
    clock.now += 7  # counted from the attempt that was answered
    patience.ask(begin(2))
    for attempt, seconds in enumerate([70, 140, 280, 560, 600], start=1):
        patience.ask(begin(2, attempt))
        assert seconds_to_the_end(patience, clock) == seconds


def test_the_deadline_of_a_round_leaves_time_for_a_peer_to_come_back(clock: Clock) -> None:
    patience = Patience(Role.COORDINATOR, Limits(peer_timeout=10, round_timeout=600), clock)
    for number in range(1, 4):
        patience.ask(begin(number))
        clock.now += 0.1
    patience.ask(begin(4))
    assert seconds_to_the_end(patience, clock) == 20
    patience.ask(FINISH)
    assert seconds_to_the_end(patience, clock) == 600


def test_the_slowest_of_the_last_rounds_decides(clock: Clock) -> None:
    patience = Patience(Role.COORDINATOR, Limits(peer_timeout=1, round_timeout=600), clock)
    patience.ask(begin(1))
    clock.now += 30
    for number in range(2, 22):
        patience.ask(begin(number))
        clock.now += 1
    patience.ask(begin(22))  # the slow one is forgotten by now
    assert seconds_to_the_end(patience, clock) == pytest.approx(10)


def test_a_round_is_given_up_for_the_time_being(leader: Patience, clock: Clock) -> None:
    leader.ask(begin(4, attempt=2))
    assert seconds_to_the_end(leader, clock) == 100
    clock.now = 100
    assert leader.give_up().key == RoundKey(4, 2)
    assert seconds_to_the_end(leader, clock) == 100


@pytest.mark.parametrize(("question", "awaited"), [(None, "ready"), (OFFER, "ready"), (FINISH, "finished")])
def test_a_wait_for_anything_but_a_round_ends_the_job(
    leader: Patience, question: Question | None, awaited: str
) -> None:
    if question is not None:
        leader.ask(question)
    with pytest.raises(PeerError, match=f"the parties were not {awaited}, and have made no progress for 100 s"):
        leader.give_up()


def test_an_alignment_progresses_when_more_of_it_is_done_than_ever_before(leader: Patience) -> None:
    leader.ask(OFFER)
    assert [leader.is_further("alignment", done) for done in (0.1, 0.2, 0.2, 0.1, 0.7)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    leader.ask(begin(1))
    assert not leader.is_further("alignment", 0.8)


def test_the_work_before_the_first_round_counts_by_party_and_in_a_limited_number_of_steps(leader: Patience) -> None:
    leader.ask(OFFER)
    assert leader.is_further((Role.HOST, "reading"), 0.5)
    assert leader.is_further((Role.GUEST, "reading"), 0.1)
    n_steps = sum(leader.is_further("sorting", step / 10**6) for step in range(0, 10**6, 7))
    assert n_steps == STEPS


def test_a_round_takes_its_time_as_long_as_it_goes_on(clock: Clock) -> None:
    patience = Patience(Role.COORDINATOR, Limits(peer_timeout=10, round_timeout=600), clock)
    patience.ask(begin(1))
    for _ in range(100):
        clock.now += 599
        patience.wait_on()
    assert seconds_to_the_end(patience, clock) == 600
    patience.ask(begin(2))
    assert seconds_to_the_end(patience, clock) == 600  # ten times the first round would be more


def test_a_coordinator_that_has_worked_beyond_its_limit_looks_once_for_what_has_come(
    leader: Patience, clock: Clock
) -> None:
    leader.ask(begin(1))
    clock.now += 1000
    leader.asked_peers()
    leader.wait()
    assert not leader.is_over(clock.now)
    assert seconds_to_the_end(leader, clock) == leader.pause


def test_peers_are_asked_in_turn_even_if_messages_come_all_the_time(leader: Patience, clock: Clock) -> None:
    leader.ask(begin(1))
    alarms = []
    for _ in range(5):
        leader.wait()
        alarms.append(leader.alarm())
        clock.now += leader.pause / 2
    assert set(alarms) == {leader.pause}
    leader.asked_peers()
    assert leader.alarm() == clock.now + leader.pause


@pytest.mark.parametrize("role", PARTIES)
def test_a_partys_time_is_twice_as_long_and_begins_with_each_wait(role: Role, clock: Clock) -> None:
    patience = Patience(role, LIMITS, clock)
    clock.now = 1000.0  # spent on work, not on waiting
    patience.wait()
    assert seconds_to_the_end(patience, clock) == 200
    patience.wait_on()  # The coordinator has said that the job progresses.
    assert seconds_to_the_end(patience, clock) == 200
    with pytest.raises(PeerError, match=f"the {role} has received no message of the job for 200 s"):
        patience.give_up()
