"""The wire format: the key of a run, the parts that messages are made of, and encrypted vectors in chunks.

Any input may come from a stranger. The code checks each size before it allocates memory for it, and each number before
it uses it. `routes` has the codec of each message.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, NoReturn, Self

import numpy as np
from pydantic_core import from_json

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import JOB_NAME, parse_settings
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.paillier.keys import MAX_KEY_BITS, ciphertext_width
from trilateral.common.pb.v1 import jobs_pb2, party_pb2, rounds_pb2
from trilateral.common.protocol.bounds import PIECE
from trilateral.common.protocol.messages import ELEMENT_KINDS, Kind, RoundKey, VectorPiece
from trilateral.common.shares.keys import SEED_BYTES

PACKAGE = "trilateral.v1"
"""Package of the contract, protos/trilateral/common/pb/v1."""
RUN_ID_BYTES = 16
PREDICTION_BYTES = 16
"""Bytes of the ID that a guest gives a prediction."""
MAX_ONLINE_ROWS = 100
"""Maximum number of rows of one request for online scores."""
CHUNK_BYTES = 1024 * 1024
"""Maximum bytes of ciphertexts in one request."""
MIN_KEY_BITS = 256
MIN_WIDTH, MAX_WIDTH = ciphertext_width(MIN_KEY_BITS), ciphertext_width(MAX_KEY_BITS)
"""Bytes of a ciphertext, an even number. With a smaller minimum, one chunk could become a million numbers."""
MAX_TOTAL = 2**31
"""Maximum number of rows, and of ciphertexts in a vector."""
MAX_FLOATS = 2**16
"""Maximum number of columns of one party, and of hold-out scores in one message: 512 KiB."""
MAX_DIGEST_BYTES = 64
MAX_WEIGHT_BITS = 32
"""Maximum fraction bits of sample weights, half of the bits of a ring element."""
MAX_REASON = 4000
MAX_JOB_JSON = 64 * 1024


@dataclass(frozen=True)
class JobKey:
    """Identifies one run of a job. A job's name can be used again once a run of it has failed.

    Attributes:
        name: the name of the job.
        run_id: `RUN_ID_BYTES` random bytes.
    """

    name: str
    run_id: bytes

    @classmethod
    def draw(cls, name: str) -> Self:
        """Return the key of a new run of the job `name`."""
        return cls(name, token_bytes(RUN_ID_BYTES))


def job_key(request: Any) -> JobKey:
    """Return the key of the run that a request belongs to. Every request of a job has the fields of the key.

    Raises:
        ProtocolError: the name or the run ID is not valid.
    """
    name, run_id = request.job, request.run_id
    if re.fullmatch(JOB_NAME, name) is None:
        refuse("a message with an invalid job name")
    if len(run_id) != RUN_ID_BYTES:
        refuse(f"a run ID of {len(run_id)} bytes")
    return JobKey(name, run_id)


def width_of(job: JobConfig) -> int:
    """Return the number of bytes of a ciphertext under the job's key, which need not exist yet."""
    return ciphertext_width(job.key_bits)


def parse_job(job_json: str) -> JobConfig:
    """Return the settings of a job from their JSON.

    Raises:
        ConfigError: names each key that cannot be used.
    """
    if len(job_json) > MAX_JOB_JSON:
        raise ConfigError(f"the job: has {len(job_json)} characters; the maximum is {MAX_JOB_JSON}")
    try:
        settings = from_json(job_json)
    except ValueError:
        raise ConfigError("the job: is not JSON") from None
    if not isinstance(settings, dict):
        raise ConfigError("the job: expected keys with values")
    return parse_settings(JobConfig, settings, "the job")


# --- parts of messages

KIND_NUMBERS = {kind: rounds_pb2.VectorKind.Value(f"VECTOR_KIND_{kind.name}") for kind in Kind}
"""The number of each kind of vector in the contract."""
_KINDS: dict[int, Kind] = {number: kind for kind, number in KIND_NUMBERS.items()}
_PARTY_NUMBERS = {party: party_pb2.Party.Value(f"PARTY_{party.name}") for party in PARTIES}
_PARTIES: dict[int, Role] = {number: party for party, number in _PARTY_NUMBERS.items()}
_OUTCOME_NUMBERS = {end: jobs_pb2.Outcome.Value(f"OUTCOME_{end.name}") for end in (Outcome.STOPPED, Outcome.FAILED)}
_OUTCOMES: dict[int, Outcome] = {number: end for end, number in _OUTCOME_NUMBERS.items()}


def refuse(what: str) -> NoReturn:
    """Raise a ProtocolError that says what was received."""
    raise ProtocolError(f"received {what}")


def encode_key(key: RoundKey) -> rounds_pb2.RoundKey:
    """Return a round's key in the form of the contract."""
    return rounds_pb2.RoundKey(round=key.round, attempt=key.attempt)


def decode_key(key: rounds_pb2.RoundKey) -> RoundKey:
    """Return the key of a round; rounds and attempts count from 1."""
    if key.round < 1 or key.attempt < 1:
        refuse("a round or an attempt below 1")
    return RoundKey(key.round, key.attempt)


def decode_kind(number: int) -> Kind:
    """Return the kind of a vector from its number in the contract."""
    kind = _KINDS.get(number)
    if kind is None:
        refuse(f"a vector of an unknown kind ({number})")
    return kind


def encode_party(party: Role) -> int:
    """Return a party's number in the contract."""
    return _PARTY_NUMBERS[party]


def decode_party(number: int) -> Role:
    """Return the party from its number in the contract."""
    party = _PARTIES.get(number)
    if party is None:
        refuse(f"an offer to an unknown party ({number})")
    return party


def encode_outcome(outcome: Outcome) -> int:
    """Return the contract's number for an outcome without a model."""
    return _OUTCOME_NUMBERS[outcome]


def decode_outcome(number: int) -> Outcome:
    """Return an outcome without a model from its number in the contract."""
    outcome = _OUTCOMES.get(number)
    if outcome is None:
        refuse(f"the end of a job with the outcome {number}")
    return outcome


def decode_floats(values: Collection[float], what: str, maximum: int = MAX_FLOATS) -> FloatVector:
    """Return finite numbers, at most `maximum`, as a vector; `what` names one of them in errors."""
    if len(values) > maximum:
        refuse(f"{len(values)} numbers as {what}; the maximum is {maximum}")
    vector = np.fromiter(values, np.float64, len(values))
    if not np.isfinite(vector).all():
        refuse(f"a {what} that is not finite")
    return vector


def decode_float(value: float, what: str) -> float:
    """Return a finite number; `what` names it in errors."""
    return float(decode_floats([value], what)[0])


def decode_text(text: str) -> str:
    """Return a peer's text for logs and terminals: at most a page, without characters that control a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:MAX_REASON])


def decode_count(number: int, maximum: int, what: str) -> int:
    """Return a count from 1 to `maximum`; `what` names the things counted in errors."""
    if not 1 <= number <= maximum:
        refuse(f"a count of {number} {what}; expected 1 to {maximum}")
    return number


def decode_columns(number: int) -> int:
    """Return a number of training columns."""
    return decode_count(number, MAX_FLOATS, "columns")


def decode_digest(data: bytes, what: str) -> bytes:
    """Return a nonce or a digest; `what` names it in errors."""
    if len(data) > MAX_DIGEST_BYTES:
        refuse(f"a {what} of {len(data)} bytes")
    return data


def decode_seed(data: bytes) -> bytes:
    """Return one side's part of a seed; it is empty under the Paillier protocol."""
    if len(data) not in (0, SEED_BYTES):
        refuse(f"a part of a seed of {len(data)} bytes")
    return data


def decode_weight_bits(number: int) -> int:
    """Return the fraction bits of sample weights."""
    if number > MAX_WEIGHT_BITS:
        refuse(f"sample weights of {number} fraction bits; the maximum is {MAX_WEIGHT_BITS}")
    return number


# --- vectors


def encode_piece(job: JobKey, piece: VectorPiece) -> Iterator[rounds_pb2.SendVectorRequest]:
    """Yield a piece of a vector as chunks of at most `CHUNK_BYTES` and at most `PIECE` ciphertexts.

    Args:
        job: the run that it belongs to.
        piece: its ciphertexts.
    """
    width = piece.ciphertexts.width
    step = max(1, min(PIECE, CHUNK_BYTES // width))
    for start in range(0, len(piece.ciphertexts), step):
        chunk = piece.ciphertexts[start : start + step]
        yield rounds_pb2.SendVectorRequest(
            job=job.name,
            run_id=job.run_id,
            key=encode_key(piece.key),
            kind=KIND_NUMBERS[piece.kind],
            offset=piece.offset + start,
            total=piece.total,
            width=width,
            ciphertexts=bytes(chunk.data),
        )


def decode_piece(request: rounds_pb2.SendVectorRequest) -> VectorPiece:
    """Return the ciphertexts of one chunk.

    Raises:
        ProtocolError: the chunk does not fit its width, or its vector.
    """
    key, kind, width, data = decode_key(request.key), decode_kind(request.kind), request.width, request.ciphertexts
    if kind in ELEMENT_KINDS:
        refuse(f"ciphertexts as {kind}, which consists of ring elements")
    if not MIN_WIDTH <= width <= MAX_WIDTH or width % 2 or not 0 < len(data) <= CHUNK_BYTES or len(data) % width:
        refuse(f"{len(data)} bytes as ciphertexts of {width} bytes each")
    count = len(data) // width
    if count > PIECE:
        refuse(f"{count} ciphertexts in one message; the maximum is {PIECE}")
    if request.total > MAX_TOTAL or request.offset + count > request.total:
        refuse(f"ciphertexts {request.offset} to {request.offset + count} of {request.total} of {kind}")
    return VectorPiece(key, kind, request.offset, request.total, Ciphertexts(data, width))


class VectorStream:
    """Checks that the chunks of one call form encrypted vectors of one run, one vector after the other.

    `decode_piece` checks each chunk by itself. A call may begin anywhere in its first vector: acknowledged chunks are
    not sent again.
    """

    def __init__(self) -> None:
        self._run: tuple[object, ...] | None = None
        self._vector: tuple[object, ...] | None = None
        self._next_offset = 0

    def check(self, chunk: rounds_pb2.SendVectorRequest) -> None:
        """Check the next chunk of the call.

        Raises:
            ProtocolError: the chunk belongs to another run, does not continue the call's vector, or goes beyond its
                end.
        """
        key = chunk.key
        run, vector = (chunk.job, chunk.run_id, chunk.width), (key.round, key.attempt, chunk.kind, chunk.total)
        if self._run is None:
            self._run, self._vector, self._next_offset = run, vector, chunk.offset
        if run != self._run:
            raise ProtocolError("received chunks of two runs, or ciphertexts of two sizes, in one call")
        if vector != self._vector:
            self._vector, self._next_offset = vector, 0
        if chunk.offset != self._next_offset:
            raise ProtocolError(f"received ciphertexts from {chunk.offset}, expected those from {self._next_offset}")
        self._next_offset += len(chunk.ciphertexts) // max(1, chunk.width)
        if self._next_offset > chunk.total:
            raise ProtocolError(f"received more ciphertexts than the {chunk.total} that were announced")
