"""Sessions that break off anywhere, each under a new key, lead to the model of an undisturbed training."""

import random
from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.job import JobConfig, Sqn
from common.errors import ProtocolError
from common.paillier.keys import generate_private_key
from common.protocol.messages import (
    Began,
    BeginRound,
    Evaluated,
    FinishJob,
    JobEnded,
    Machine,
    Message,
    Observed,
    OpenJob,
    Ready,
    Result,
    RoundReport,
    StepTaken,
)
from common.roles import PARTIES, Role
from coordinator.machine import CoordinatorMachine, Past
from coordinator.plain import train_plain
from coordinator.plan import Observation
from guest_party.machine import GuestMachine
from host_party.machine import HostMachine
from tests.support.three_machines import make_tables

JOB = JobConfig(
    name="restarts",
    dataset="made",
    algorithm=Sqn(interval=2),
    batch=12,
    epochs=3,
    key_bits=384,
    slots=1,
    seed=1,
    evaluate_every=1,
)
KEYS = [generate_private_key(384) for _ in range(3)]
TABLES = make_tables(JOB, n_rows=45, n_host=2, n_guest=1)
JOINED = TABLES.joined
EXPECTED = train_plain(
    JOB, JOINED.columns, JOINED.labels, JOINED.penalty, (JOINED.holdout_columns, JOINED.holdout_labels)
).coef


@dataclass
class Journals:
    """What the three processes keep."""

    ready: dict[Role, Ready] = field(default_factory=dict)
    observations: list[Observation | None] = field(default_factory=list)
    steps: dict[Role, dict[int, BeginRound | FinishJob]] = field(default_factory=lambda: {role: {} for role in PARTIES})
    evaluations: dict[int, Evaluated] = field(default_factory=dict)
    results: dict[Role, Result] = field(default_factory=dict)
    ended: JobEnded | None = None

    def keep(self, role: Role, message: Message) -> bool:
        """Take down what a machine says to its own process; False if it is for another."""
        match message:
            case Began():
                self.ready = dict(message.ready)
            case Observed(loss=None):
                self.observations.append(None)
            case Observed(loss=float(loss)):
                self.observations.append(Observation(loss, message.gradient, message.curvature, message.holdout_loss))
            case StepTaken(asked=asked):
                number = asked.key.round if isinstance(asked, BeginRound) else asked.round
                self.steps[role].setdefault(number, asked)
            case Evaluated():
                self.evaluations[message.key.round] = message
            case Result():
                self.results[role] = message
            case JobEnded():
                self.ended = message
            case _:
                return isinstance(message, RoundReport | OpenJob)
        return True

    def machines(self, number: int) -> dict[Role, Machine]:
        """Of a session."""
        key = KEYS[number % len(KEYS)]
        past = Past(b"1", self.ready, list(self.observations))
        host = HostMachine(JOB, TABLES.host, key.public_key)
        guest = GuestMachine(JOB, TABLES.guest, key.public_key)
        host.restore(list(self.steps[Role.HOST].values()))
        guest.restore(list(self.steps[Role.GUEST].values()), list(self.evaluations.values()))
        return {Role.COORDINATOR: CoordinatorMachine(JOB, key, past=past), Role.HOST: host, Role.GUEST: guest}


def run_session(journals: Journals, machines: dict[Role, Machine], chance: random.Random, n_messages: int) -> None:
    """Deliver so many messages, each pair of roles in order, some of them twice; the last answer may be cut off."""
    queues: dict[tuple[Role, Role], deque[Message]] = {}
    for role, machine in machines.items():
        for envelope in machine.start():
            if not journals.keep(role, envelope.message):
                queues.setdefault((role, envelope.to), deque()).append(envelope.message)
    for left in range(n_messages, 0, -1):
        waiting = [pair for pair, queue in queues.items() if queue]
        if not waiting:
            return
        sender, to = chance.choice(waiting)
        message = queues[sender, to][0]
        if chance.random() > 0.1:
            queues[sender, to].popleft()
        for envelope in machines[to].handle(sender, message):
            if left == 1 and chance.random() < 0.5:
                return
            if not journals.keep(to, envelope.message):
                queues.setdefault((to, envelope.to), deque()).append(envelope.message)
        if journals.ended is not None:
            return


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 140), max_size=6))
@settings(max_examples=60)
def test_sessions_that_break_off_anywhere_lead_to_the_same_model(seed: int, cuts: list[int]) -> None:
    journals, chance = Journals(), random.Random(seed)
    for number, n_messages in enumerate([*cuts, 20_000]):
        if journals.ended is None:
            run_session(journals, journals.machines(number), chance, n_messages)

    assert journals.ended is not None
    assert journals.ended.loss is not None, journals.ended.reason
    coef = np.concatenate([journals.results[party].coef for party in PARTIES])
    np.testing.assert_allclose(coef, EXPECTED, rtol=0, atol=1e-6)
    assert [each.epochs for each in journals.results[Role.GUEST].evaluations] == [1, 2]


# --- what a coordinator cannot get by a restart, or by saying that there was one


def in_mid_training(n_messages: int = 70) -> Journals:
    journals = Journals()
    run_session(journals, journals.machines(0), random.Random(1), n_messages)
    assert journals.ended is None
    assert len(journals.steps[Role.HOST]) >= 3
    return journals


def ask(journals: Journals, asked: BeginRound | FinishJob) -> list[Message]:
    host = journals.machines(1)[Role.HOST]
    return [envelope.message for envelope in host.handle(Role.COORDINATOR, asked)]


def last_begun(journals: Journals) -> BeginRound:
    (*_, last) = journals.steps[Role.HOST].values()
    assert isinstance(last, BeginRound)
    return last


def test_a_restart_gives_no_sums_of_another_batch_in_the_same_round() -> None:
    journals = in_mid_training()
    last = last_begun(journals)
    again = replace(last, key=replace(last.key, attempt=1))
    assert any(isinstance(message, StepTaken) for message in ask(journals, again))
    other = replace(again, batch=replace(last.batch, index=(last.batch.index + 1) % 3))
    with pytest.raises(ProtocolError, match="asks for something else than in the attempt before"):
        ask(journals, other)


def test_a_restart_leads_to_no_earlier_round_and_skips_none() -> None:
    journals = in_mid_training()
    last = last_begun(journals)
    assert ask(journals, replace(last, key=replace(last.key, round=last.key.round - 1))) == []
    with pytest.raises(ProtocolError, match="was sent a step"):
        ask(journals, replace(last, key=replace(last.key, round=last.key.round + 2), direction=None, curvature_draw=0))


def test_evaluations_of_all_sessions_count_together() -> None:
    journals = in_mid_training()
    last = last_begun(journals)
    steps = journals.steps[Role.HOST]
    zeros = np.zeros_like(last.step)
    for number in (1, 2):
        asked = steps[number]
        assert isinstance(asked, BeginRound)
        steps[number] = replace(asked, evaluate_at=zeros)
    following = replace(last, key=replace(last.key, round=last.key.round + 1), evaluate_at=zeros)
    with pytest.raises(ProtocolError, match="with an evaluation: this job has at most 2"):
        ask(journals, following)


def test_after_the_last_step_there_is_no_other() -> None:
    journals = in_mid_training()
    last = last_begun(journals)
    finish = FinishJob(last.key.round + 1, np.ones_like(last.step), 0.5, 1, "enough", None)
    journals.steps[Role.HOST][finish.round] = finish
    assert any(isinstance(message, Result) for message in ask(journals, finish))
    with pytest.raises(ProtocolError, match="took another last step"):
        ask(journals, replace(finish, step=2 * finish.step))
    with pytest.raises(ProtocolError, match="had taken the last step"):
        ask(journals, replace(last, key=replace(last.key, round=last.key.round + 1)))


def test_a_party_with_an_old_copy_of_its_journal_is_told() -> None:
    journals = in_mid_training()
    steps = journals.steps[Role.GUEST]
    for number in list(steps)[1:]:
        del steps[number]
    with pytest.raises(ProtocolError, match="the guest is in round 1 of the job .* an old copy of its journal"):
        run_session(journals, journals.machines(1), random.Random(0), 1000)
