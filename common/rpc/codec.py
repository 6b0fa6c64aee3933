"""Messages of the protocol to requests of the wire contract, and back.

`ROUTES` says which method carries which message. What comes in is a stranger's: sizes are
checked before anything is allocated by them, and numbers before they are used.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from secrets import token_bytes
from typing import Any, Self

import numpy as np
from gmpy2 import mpz
from google.protobuf.message import Message as Request
from pydantic_core import from_json

from trilateral.common.base.arrays import FloatVector
from trilateral.common.base.errors import ConfigError, ProtocolError
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.config.settings import JOB_NAME, parse_settings
from trilateral.common.paillier.keys import ciphertext_width
from trilateral.common.pb.v1 import coordinator_pb2, guest_pb2, host_pb2, party_pb2, rounds_pb2
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.messages import (
    BeginRound,
    Evaluation,
    Failed,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Kind,
    Message,
    OpenJob,
    OutOfRange,
    Ready,
    RoundKey,
    VectorPiece,
    Waiting,
)

PACKAGE = "trilateral.v1"
RUN_ID_BYTES = 16
PREDICTION_BYTES = 16
"""Of the name that a guest gives to a prediction."""
CHUNK_BYTES = 1024 * 1024
"""Of ciphertexts in one request, at most."""
MIN_KEY_BITS, MAX_KEY_BITS = 256, 8192
MIN_WIDTH, MAX_WIDTH = ciphertext_width(MIN_KEY_BITS), ciphertext_width(MAX_KEY_BITS)
"""Bytes of a ciphertext, an even number. Narrower ones would make a million numbers of one chunk, in a second."""
MAX_TOTAL = 2**31
"""Rows, or ciphertexts of a vector."""
MAX_FLOATS = 2**16
"""Columns of one party, or hold-out scores in one message: 512 KiB."""
MAX_PROOF_BYTES = 64
MAX_REASON = 4000
MAX_JOB_JSON = 64 * 1024


@dataclass(frozen=True)
class JobKey:
    """Which run of which job a message belongs to: a name may be used again once its job has failed."""

    name: str
    run_id: bytes

    @classmethod
    def draw(cls, name: str) -> Self:
        """A new run of a job."""
        return cls(name, token_bytes(RUN_ID_BYTES))


@dataclass(frozen=True)
class Route:
    """One method of the contract and the message that it carries."""

    service: str
    method: str
    message: type[Message]
    request: type[Request]
    response: type[Request]
    pack: Callable[[Any], dict[str, Any]]
    """The message's fields in the request, all but those of the `JobKey`."""
    unpack: Callable[[Any], Message]

    @property
    def path(self) -> str:
        """As gRPC names the method."""
        return f"/{PACKAGE}.{self.service}/{self.method}"


def width_of(job: JobConfig) -> int:
    """Bytes of a ciphertext under the job's key, which is not made yet."""
    return ciphertext_width(job.key_bits)


def route_for(sender: Role, receiver: Role, message: Message) -> Route:
    """The method by which a message travels from one role to another."""
    service = "PartyService" if sender is Role.COORDINATOR else f"{receiver.value.capitalize()}Service"
    return _BY_MESSAGE[service, type(message)]


def encode(job: JobKey, message: Message, route: Route) -> Request:
    """A message that travels whole."""
    return route.request(job=job.name, run_id=job.run_id, **route.pack(message))


def encode_piece(job: JobKey, piece: VectorPiece, width: int) -> Iterator[rounds_pb2.SendVectorRequest]:
    """A piece of a vector as chunks of at most `CHUNK_BYTES`, each ciphertext `width` bytes."""
    step = max(1, CHUNK_BYTES // width)
    for start in range(0, len(piece.ciphertexts), step):
        chunk = piece.ciphertexts[start : start + step]
        yield rounds_pb2.SendVectorRequest(
            job=job.name,
            run_id=job.run_id,
            key=_pack_key(piece.key),
            kind=_KIND_NUMBERS[piece.kind],
            offset=piece.offset + start,
            total=piece.total,
            width=width,
            ciphertexts=b"".join(ciphertext.to_bytes(width, "big") for ciphertext in chunk),
        )


def job_key(request: Any) -> JobKey:
    """Whose message is in a request; every request of the protocol says it.

    Raises:
        ProtocolError: it cannot be the key of a job.
    """
    if re.fullmatch(JOB_NAME, request.job) is None:
        _refuse("a message of a job whose name is none")
    if len(request.run_id) != RUN_ID_BYTES:
        _refuse(f"a run ID of {len(request.run_id)} bytes")
    return JobKey(request.job, request.run_id)


def decode(request: Request) -> Message:
    """The message in a request.

    Raises:
        ProtocolError: it is none that the protocol has.
        ConfigError: the settings of the job that it offers cannot be used.
    """
    return _BY_REQUEST[type(request)].unpack(request)


def decode_kind(number: int) -> Kind:
    """The kind of a vector."""
    return _KINDS.get(number) or _refuse(f"a vector of no known kind ({number})")


def parse_job(job_json: str) -> JobConfig:
    """The settings of a job; ConfigError names the keys that cannot be used."""
    if len(job_json) > MAX_JOB_JSON:
        raise ConfigError(f"the job: has {len(job_json)} characters, where {MAX_JOB_JSON} are the most")
    try:
        settings = from_json(job_json)
    except ValueError:
        raise ConfigError("the job: is not JSON") from None
    if not isinstance(settings, dict):
        raise ConfigError("the job: expected keys with values")
    return parse_settings(JobConfig, settings, "the job")


# --- parts of messages

_KIND_NUMBERS = {kind: rounds_pb2.VectorKind.Value(f"VECTOR_KIND_{kind.name}") for kind in Kind}
_KINDS: dict[int, Kind] = {number: kind for kind, number in _KIND_NUMBERS.items()}
_PARTY_NUMBERS = {party: party_pb2.Party.Value(f"PARTY_{party.name}") for party in PARTIES}
_PARTIES: dict[int, Role] = {number: party for party, number in _PARTY_NUMBERS.items()}


def _refuse(what: str) -> Any:
    raise ProtocolError(f"received {what}")


def _pack_key(key: RoundKey) -> rounds_pb2.RoundKey:
    return rounds_pb2.RoundKey(round=key.round, attempt=key.attempt)


def _unpack_key(key: rounds_pb2.RoundKey) -> RoundKey:
    if key.round < 1 or key.attempt < 1:
        _refuse("a round or an attempt below 1")
    return RoundKey(key.round, key.attempt)


def _floats(values: Collection[float], what: str) -> FloatVector:
    if len(values) > MAX_FLOATS:
        _refuse(f"{len(values)} numbers as {what}: the most is {MAX_FLOATS}")
    vector = np.fromiter(values, np.float64, len(values))
    if not np.isfinite(vector).all():
        _refuse(f"a {what} that is not finite")
    return vector


def _float(value: float, what: str) -> float:
    return float(_floats([value], what)[0])


def _text(text: str) -> str:
    """A peer's words, which go to logs and terminals: no more than a page, and nothing that steers a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[:MAX_REASON])


def _count(number: int, most: int, what: str) -> int:
    return number if 1 <= number <= most else _refuse(f"a count of {number} {what}: 1 to {most} are possible")


def _short(data: bytes, what: str) -> bytes:
    return data if len(data) <= MAX_PROOF_BYTES else _refuse(f"a {what} of {len(data)} bytes")


def _pack_open(message: OpenJob) -> dict[str, Any]:
    modulus = message.modulus.to_bytes(-(-message.modulus.bit_length() // 8), "big")
    return {
        "job_json": message.job.model_dump_json(),
        "modulus": modulus,
        "party": _PARTY_NUMBERS[message.party],
        "job_id": message.job_id,
        "was_ready": message.was_ready,
    }


def _unpack_open(request: party_pb2.OpenJobRequest) -> OpenJob:
    job = parse_job(request.job_json)
    if request.job != job.name:
        _refuse(f"a job under another name than its own, {job.name}")
    if len(request.modulus) > MAX_KEY_BITS // 8:
        _refuse(f"a public key of more than {MAX_KEY_BITS} bits")
    party = _PARTIES.get(request.party) or _refuse(f"an offer to no known party ({request.party})")
    if len(request.job_id) not in (0, RUN_ID_BYTES):
        _refuse(f"a job ID of {len(request.job_id)} bytes")
    return OpenJob(job, mpz.from_bytes(request.modulus, "big"), party, request.job_id, request.was_ready)


def _pack_begin(message: BeginRound) -> dict[str, Any]:
    return {
        "key": _pack_key(message.key),
        "step": message.step.tolist(),
        "epoch": message.batch.epoch,
        "batch": message.batch.index,
        "gradient": message.gradient,
        "direction": [] if message.direction is None else message.direction.tolist(),
        "curvature_draw": message.curvature_draw,
        "loss": message.loss,
        "evaluate_at": [] if message.evaluate_at is None else message.evaluate_at.tolist(),
        "over": message.over,
    }


def _unpack_begin(request: party_pb2.BeginRoundRequest) -> BeginRound:
    direction = _floats(request.direction, "direction")
    evaluate_at = _floats(request.evaluate_at, "point to evaluate")
    return BeginRound(
        key=_unpack_key(request.key),
        step=_floats(request.step, "step"),
        batch=Batch(request.epoch, request.batch),
        gradient=request.gradient,
        direction=direction if len(direction) else None,
        curvature_draw=request.curvature_draw,
        loss=_float(request.loss, "loss") if request.HasField("loss") else None,
        evaluate_at=evaluate_at if len(evaluate_at) else None,
        over=request.over,
    )


def _pack_finish(message: FinishJob) -> dict[str, Any]:
    return {
        "round": message.round,
        "step": message.step.tolist(),
        "loss": message.loss,
        "epochs": message.epochs,
        "reason": message.reason,
        "round_loss": message.round_loss,
    }


def _unpack_finish(request: party_pb2.FinishJobRequest) -> FinishJob:
    step, loss = _floats(request.step, "step"), _float(request.loss, "loss")
    round_loss = _float(request.round_loss, "round_loss") if request.HasField("round_loss") else None
    return FinishJob(request.round, step, loss, request.epochs, _text(request.reason), round_loss)


def _unpack_piece(request: rounds_pb2.SendVectorRequest) -> VectorPiece:
    key, kind, width, data = _unpack_key(request.key), decode_kind(request.kind), request.width, request.ciphertexts
    if not MIN_WIDTH <= width <= MAX_WIDTH or width % 2 or not 0 < len(data) <= CHUNK_BYTES or len(data) % width:
        _refuse(f"{len(data)} bytes as ciphertexts of {width} bytes each")
    count = len(data) // width
    if request.total > MAX_TOTAL or request.offset + count > request.total:
        _refuse(f"ciphertexts {request.offset} to {request.offset + count} of {request.total} of {kind}")
    ciphertexts = [mpz.from_bytes(data[start : start + width], "big") for start in range(0, len(data), width)]
    return VectorPiece(key, kind, request.offset, request.total, ciphertexts)


def _unpack_holdout(request: guest_pb2.SendHoldoutScoresRequest) -> HoldoutScores:
    scores = _floats(request.scores, "hold-out score")
    if request.total > MAX_TOTAL or not 0 < len(scores) <= request.total - request.offset:
        _refuse(f"hold-out scores {request.offset} to {request.offset + len(scores)} of {request.total}")
    return HoldoutScores(_unpack_key(request.key), request.offset, request.total, scores)


def _pack_holdout(message: HoldoutScores) -> dict[str, Any]:
    scores = message.scores.tolist()
    return {"key": _pack_key(message.key), "offset": message.offset, "total": message.total, "scores": scores}


def _unpack_evaluation(request: coordinator_pb2.ReportEvaluationRequest) -> Evaluation:
    auc = _float(request.auc, "AUC") if request.HasField("auc") else None
    return Evaluation(_unpack_key(request.key), _float(request.log_loss, "log loss"), auc)


def _pack_alignment(message: AlignmentProgress) -> dict[str, Any]:
    return asdict(message)


def _unpack_alignment(request: coordinator_pb2.ReportAlignmentRequest) -> AlignmentProgress:
    n_shards = _count(request.n_shards, MAX_TOTAL, "shards")
    n_host, n_guest = _count(request.n_host, MAX_TOTAL, "IDs"), _count(request.n_guest, MAX_TOTAL, "IDs")
    if request.done > n_shards or request.n_common > min(n_host, n_guest):
        _refuse("an alignment that has found more than there is")
    return AlignmentProgress(request.done, n_shards, n_host, n_guest, request.n_common)


def _pack_failed(message: Failed) -> dict[str, Any]:
    return {"reason": message.reason}


def _unpack_failed(request: party_pb2.FailJobRequest | coordinator_pb2.ReportFailureRequest) -> Failed:
    return Failed(_text(request.reason))


def _pack_piece(piece: VectorPiece) -> dict[str, Any]:
    raise TypeError("a vector travels in chunks: encode_piece")


_MODULES = {
    "PartyService": party_pb2,
    "HostService": host_pb2,
    "GuestService": guest_pb2,
    "CoordinatorService": coordinator_pb2,
}


def _route(
    service: str,
    method: str,
    message: type[Message],
    pack: Callable[[Any], dict[str, Any]],
    unpack: Callable[[Any], Message],
) -> Route:
    """By the contract's naming, a method `X` has an `XRequest` and an `XResponse`; vectors share theirs."""
    module = rounds_pb2 if message is VectorPiece else _MODULES[service]
    return Route(
        service,
        method,
        message,
        getattr(module, f"{method}Request"),
        getattr(module, f"{method}Response"),
        pack,
        unpack,
    )


ROUTES = (
    _route("PartyService", "OpenJob", OpenJob, _pack_open, _unpack_open),
    _route("PartyService", "BeginRound", BeginRound, _pack_begin, _unpack_begin),
    _route("PartyService", "FinishJob", FinishJob, _pack_finish, _unpack_finish),
    _route("PartyService", "CheckJob", Waiting, lambda message: {}, lambda request: Waiting()),
    _route("PartyService", "FailJob", Failed, _pack_failed, _unpack_failed),
    _route(
        "HostService",
        "ChallengeIds",
        IdChallenge,
        lambda message: {"nonce": message.nonce, "n_rows": message.n_rows},
        lambda request: IdChallenge(_short(request.nonce, "nonce"), _count(request.n_rows, MAX_TOTAL, "rows")),
    ),
    _route(
        "HostService",
        "ConfirmIds",
        IdConfirmation,
        lambda message: {"digest": message.digest},
        lambda request: IdConfirmation(_short(request.digest, "digest")),
    ),
    _route("HostService", "SendVector", VectorPiece, _pack_piece, _unpack_piece),
    _route(
        "GuestService",
        "ProveIds",
        IdProof,
        lambda message: {"nonce": message.nonce, "digest": message.digest},
        lambda request: IdProof(_short(request.nonce, "nonce"), _short(request.digest, "digest")),
    ),
    _route("GuestService", "SendVector", VectorPiece, _pack_piece, _unpack_piece),
    _route("GuestService", "SendHoldoutScores", HoldoutScores, _pack_holdout, _unpack_holdout),
    _route("CoordinatorService", "ReportAlignment", AlignmentProgress, _pack_alignment, _unpack_alignment),
    _route(
        "CoordinatorService",
        "ReportReady",
        Ready,
        lambda message: {"n_train": message.n_train, "n_columns": message.n_columns, "round": message.round},
        lambda request: Ready(
            _count(request.n_train, MAX_TOTAL, "rows"),
            _count(request.n_columns, MAX_FLOATS, "columns"),
            request.round,
        ),
    ),
    _route("CoordinatorService", "SendVector", VectorPiece, _pack_piece, _unpack_piece),
    _route(
        "CoordinatorService",
        "ReportOutOfRange",
        OutOfRange,
        lambda message: {"key": _pack_key(message.key)},
        lambda request: OutOfRange(_unpack_key(request.key)),
    ),
    _route(
        "CoordinatorService",
        "ReportEvaluation",
        Evaluation,
        lambda message: {"key": _pack_key(message.key), "log_loss": message.log_loss, "auc": message.auc},
        _unpack_evaluation,
    ),
    _route("CoordinatorService", "ReportFinished", Finished, lambda message: {}, lambda request: Finished()),
    _route("CoordinatorService", "ReportWaiting", Waiting, lambda message: {}, lambda request: Waiting()),
    _route("CoordinatorService", "ReportFailure", Failed, _pack_failed, _unpack_failed),
)
_BY_MESSAGE = {(route.service, route.message): route for route in ROUTES}
_BY_REQUEST = {route.request: route for route in ROUTES}
