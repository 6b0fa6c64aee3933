"""No seed, key, share or masked number of a session on shares is in a file, a log or a printed object."""

import base64
import logging
import re
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.attacks.test_shares_views import WHOLE, tables_of
from tests.support.share_views import Randomness, run_session
from tests.support.three_servers import DATASET, make_configs, serving, train_over_localhost, write_tables
from trilateral.common.base.arrays import ElementVector
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.keys import PrivateKey
from trilateral.common.pb.v1.jobs_pb2 import JOB_STATE_FINISHED
from trilateral.common.protocol.messages import Kind, OpenJob, Ready
from trilateral.common.protocol.shares import arithmetic, attempts, blocks, session
from trilateral.common.protocol.shares.session import StreamKeys
from trilateral.common.shares import kernels, ring
from trilateral.coordinator.shares import computation, points

JOB = JobConfig(name="watched", dataset=DATASET, protocol="shares", epochs=3, tolerance=0.0, evaluate_every=1)


class Secrets:
    """Seeds, keys and numbers that a session has used."""

    def __init__(self) -> None:
        self.seeds: set[bytes] = set()
        self.keys: set[bytes] = set()
        self.elements: set[bytes] = set()

    def note(self, elements: ElementVector) -> ElementVector:
        self.elements |= {word.tobytes() for word in elements[:20]}
        return elements

    def spellings(self) -> Iterator[bytes]:
        """Yield each as bytes, in hexadecimal, base64 and a repr, and numbers in decimal."""
        for secret in self.seeds | self.keys | self.elements:
            yield secret
            yield secret.hex().encode()
            yield secret.hex().upper().encode()
            yield base64.b64encode(secret).rstrip(b"=")[:-1]
            yield repr(secret)[2:-1].encode()
        for secret in self.elements:
            number = int.from_bytes(secret, "little")
            yield str(number).encode()
            yield str(number - 2**64).encode()

    def found_in(self, data: bytes) -> set[bytes]:
        return {each for each in self.spellings() if len(each) >= 8 and each in data}


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """Write down every secret of the sessions of a test."""
    secrets = Secrets()

    def noting(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            made = function(*arguments, **options)
            for each in made if isinstance(made, tuple) else (made,):
                secrets.note(each)
            return made

        return call

    draw, derive, share = session.draw_seed, StreamKeys.of, points._share

    def draw_seed() -> bytes:
        secrets.seeds.add(seed := draw())
        return seed

    def of(self: StreamKeys, *arguments: Any) -> bytes:
        secrets.seeds.add(self.seed)
        secrets.keys.add(key := derive(self, *arguments))
        return key

    def noted_shares(values: ElementVector) -> Any:
        shares = share(values)
        for each in shares.values():
            secrets.note(each)
        return shares

    for module in (arithmetic, computation):
        monkeypatch.setattr(module, "draw_seed", draw_seed)
    monkeypatch.setattr(StreamKeys, "of", of)
    monkeypatch.setattr(points, "_share", noted_shares)
    for name in ("mask", "score_part", "deal", "stream"):
        monkeypatch.setattr(kernels, name, noting(getattr(kernels, name)))
    monkeypatch.setattr(arithmetic, "cut_share", noting(ring.cut_share))
    return secrets


async def test_no_seed_key_or_number_is_in_any_file_or_log_of_the_three_processes(
    known: Secrets, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tables(tmp_path)
    configs = make_configs(tmp_path)
    with caplog.at_level(logging.DEBUG):
        async with serving(configs) as client:
            status = await train_over_localhost(client, JOB)
    assert status.state == JOB_STATE_FINISHED
    assert len(known.seeds) >= 6
    assert len(known.keys) > 10
    assert len(known.elements) > 500

    files = [path for config in configs.values() for path in config.state.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"history.jsonl", "audit.jsonl", "journal.sqlite"} - {"journal.sqlite"}
    for path in files:
        assert not known.found_in(path.read_bytes()), path.name
    text = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert not known.found_in(text.encode())
    assert not known.found_in(status.SerializeToString() + str(status).encode())


def test_the_search_finds_a_seed_that_is_written_down(known: Secrets) -> None:
    known.seeds.add(seed := session.draw_seed())
    for written in (seed, seed.hex().encode(), repr(seed).encode(), base64.b64encode(seed)):
        assert known.found_in(b"before " + written + b" after")


def test_no_message_prints_a_seed_or_an_element(private_key: PrivateKey, known: Secrets) -> None:
    transcript = run_session(WHOLE, tables_of(WHOLE, weighted=True, seed=1), private_key, Randomness(None))
    kinds: set[type] = set()
    for _, _, message in transcript.outcome.traffic:
        text = repr(message)
        kinds.add(type(message))
        assert not re.search(r"uint64|seed=b|share=", text), text
        assert not known.found_in(text.encode())
    assert kinds >= {OpenJob, Ready}


def secret_fields(kind: type) -> list[Field[Any]]:
    """Its keys and numbers. A digest is a function of what both parties know."""
    assert is_dataclass(kind)
    return [each for each in fields(kind) if re.search("ndarray|bytes", str(each.type)) and each.name != "digest"]


@pytest.mark.parametrize(
    "kind",
    [
        StreamKeys,
        kernels.DealerKeys,
        kernels.DealerSums,
        kernels.Residual,
        kernels.Weights,
        blocks.BlockTables,
        blocks.Opened,
        blocks.Work,
        attempts.RunState,
        blocks.Sums,
        points.ScoreMasks,
    ],
)
def test_no_object_prints_what_it_keeps_secret(kind: type) -> None:
    kept = secret_fields(kind)
    assert kept
    assert not [each.name for each in kept if each.repr]


def test_nothing_of_a_round_is_in_the_numbers_of_another(private_key: PrivateKey) -> None:
    """Two sessions on the same tables share no element, so nothing of a session can be told from another's record."""
    words = []
    for _ in range(2):
        transcript = run_session(WHOLE, tables_of(WHOLE, weighted=False, seed=1), private_key, Randomness(None))
        pieces = [
            masked.flat[1]
            for sender, to, message in transcript.outcome.traffic
            if sender is not to
            for masked in transcript.masked(sender, to, message)
            if masked.place[0] and getattr(message, "kind", None) is not Kind.SUMS
        ]
        words.append(np.concatenate(pieces))
    assert len(np.intersect1d(words[0], words[1])) == 0
