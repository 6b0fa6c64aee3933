"""Run many trainings over randomly failing networks, and report.

python -m tests.faults.weather TRIALS [--protocol paillier|shares]
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from tests.faults.networks import GOOD_LINE, behind_proxies, deck_of_cuts, on_wan, partition
from tests.support.tcp_proxy import Cut, DrawCut
from tests.support.three_servers import DATASET, PROTOCOLS, Protocol, check_model, under
from tests.support.wan import Line, Wan, why_not
from trilateral.common.base.roles import Role
from trilateral.common.config.job import JobConfig, Sqn
from trilateral.common.pb.v1.jobs_pb2 import JobStatus

PEER_TIMEOUT = 10.0
N_PARTITIONS = 3
WAYS_TO_PART = [*combinations(Role, 2), ()]
CUTS = 10 * [Cut.RESET] + 10 * [Cut.CLOSE] + 2 * [Cut.SWALLOW]
JOB = JobConfig(name="any", dataset=DATASET, key_bits=512, algorithm=Sqn(interval=4), batch=24, epochs=8, tolerance=0.0)

Trial = Callable[[JobConfig, random.Random], JobStatus]
"""Trains under random faults, checks the model, and returns the last status."""


def drawn_line(chance: random.Random) -> Line:
    """Return a random line that is worse than most real ones."""
    return Line(
        delay=chance.uniform(0.0, 0.05),
        jitter=chance.uniform(0.0, 0.02),
        loss=chance.choice([0.0, 0.005, 0.02]),
        reordering=chance.choice([0.0, 0.05, 0.2]),
        bandwidth=chance.choice([None, 20e6, 1e6]),
    )


def over_bad_lines(stack: ExitStack, faults: Counter[str]) -> Trial:
    """Return trials on three hosts with random lines and temporary partitions."""
    wan = stack.enter_context(Wan(dict.fromkeys(Role, GOOD_LINE)))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    network = stack.enter_context(on_wan(wan, folder, peer_timeout=PEER_TIMEOUT))

    def run(job: JobConfig, chance: random.Random) -> JobStatus:
        wan.heal()
        for role in Role:
            wan.shape(role, drawn_line(chance))
        parts = [(chance.choice(WAYS_TO_PART), chance.uniform(0.1, 0.4 * PEER_TIMEOUT)) for _ in range(N_PARTITIONS)]
        at = sorted(chance.sample(range(1, 28), N_PARTITIONS))
        actions = [(due, partition(wan, seconds, *hosts)) for due, (hosts, seconds) in zip(at, parts, strict=True)]
        status = network.train(job, actions)
        faults.update("partition of " + (" and ".join(hosts) or "all") for hosts, _ in parts)
        check_model(network.configs, job)
        return status

    return run


def over_cut_connections(stack: ExitStack, faults: Counter[str]) -> Trial:
    """Return trials with three processes on this machine whose connections are cut in mid-stream."""
    deck: DrawCut = lambda: None  # noqa: E731 (each training replaces it)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def draw_cut() -> tuple[Cut, int] | None:
        return deck()

    network, proxies = stack.enter_context(behind_proxies(folder, draw_cut, peer_timeout=PEER_TIMEOUT))

    def run(job: JobConfig, chance: random.Random) -> JobStatus:
        nonlocal deck
        before = sum((proxy.cuts for proxy in proxies.values()), Counter[Cut]())
        deck = deck_of_cuts(chance, CUTS, mean_bytes=chance.choice([2_000, 5_000, 20_000]))
        for proxy in proxies.values():
            proxy.cut_all(Cut.CLOSE)
        status = network.train(job)
        done = sum((proxy.cuts for proxy in proxies.values()), Counter[Cut]()) - before
        faults.update({f"connection: {how}": n for how, n in done.items()})
        check_model(network.configs, job)
        return status

    return run


def main(n_trials: int, protocol: Protocol) -> int:
    """Run trials of each kind, each seeded by its number; return how many failed."""
    faults: Counter[str] = Counter()
    n_sessions = n_again = n_wrong = n_run = 0
    with ExitStack() as stack:
        kinds = {"connections": over_cut_connections(stack, faults)}
        if (reason := why_not()) is None:
            kinds["lines"] = over_bad_lines(stack, faults)
        else:
            print(f"skipping trainings over bad lines: {reason}")
        for seed in range(n_trials):
            for kind, run in kinds.items():
                n_run += 1
                job = under(protocol, JOB.model_copy(update={"name": f"{kind}-{seed}"}))
                try:
                    status = run(job, random.Random(seed))
                except (AssertionError, TimeoutError) as error:
                    n_wrong += 1
                    print(f"{job.name}: FAILED: {error!r}", flush=True)
                    continue
                n_sessions += sum("another session" in note for note in status.notes)
                n_again += sum("begun again" in note for note in status.notes)
                print(f"{job.name}: passed, {status.seconds:.0f} s", flush=True)
    print(f"{n_run} trials, {faults.total()} faults: {dict(faults)}")
    print(f"{n_sessions} recoveries in another session, {n_again} rounds repeated within a session")
    print(f"trainings with the right model: {n_run - n_wrong} of {n_run}")
    return n_wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", type=int)
    parser.add_argument("--protocol", choices=PROTOCOLS, default="paillier", help="default: paillier")
    arguments = parser.parse_args()
    sys.exit(main(arguments.trials, arguments.protocol) > 0)
