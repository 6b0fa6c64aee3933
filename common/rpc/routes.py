"""One table of the contract's methods, `ROUTES`: what each carries and who may call it.

The access rules (`access`) and the servicers (`servicers`) follow from the table. A method that is not in it is
neither served nor permitted. Each message has its encoder and its decoder here, one below the other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from gmpy2 import mpz
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message as Request
from google.protobuf.message_factory import GetMessageClass

from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.config.job import MAX_PENALTIES
from trilateral.common.paillier.keys import MAX_KEY_BITS
from trilateral.common.pb.v1 import (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
    rounds_pb2,
)
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.binning import MAX_FINE_BINS, FineBins
from trilateral.common.protocol.messages import (
    BeginRound,
    BinSizes,
    ComparedPenalty,
    ElementPiece,
    Evaluation,
    Failed,
    Finished,
    FinishJob,
    HoldoutScores,
    IdChallenge,
    IdConfirmation,
    IdProof,
    Kind,
    MergedBins,
    MergedColumn,
    Message,
    OpenJob,
    OutOfRange,
    OwnCovariance,
    Ready,
    RoundShares,
    RowsDone,
    SharesReady,
    StageProgress,
    VectorPiece,
    Waiting,
    WeightShares,
)
from trilateral.common.protocol.row_roles import MAX_FOLDS, ROLE_PIECE, Purpose, RolePiece
from trilateral.common.protocol.shares.bounds import MAX_INFERENCE_COLUMNS, MAX_NORM_BITS
from trilateral.common.protocol.shares.counting import MAX_FINE
from trilateral.common.rpc.codec import (
    MAX_TOTAL,
    PACKAGE,
    RUN_ID_BYTES,
    JobKey,
    decode_columns,
    decode_count,
    decode_digest,
    decode_float,
    decode_floats,
    decode_key,
    decode_outcome,
    decode_party,
    decode_piece,
    decode_seed,
    decode_text,
    decode_weight_bits,
    encode_key,
    encode_outcome,
    encode_party,
    parse_job,
    refuse,
)
from trilateral.common.rpc.elements import ElementsRequest, decode_elements, pack_elements, unpack_elements

MAX_WARNINGS = 16
"""Maximum number of warnings about standard errors in one message."""
_MAX_COVARIANCE = MAX_INFERENCE_COLUMNS * (MAX_INFERENCE_COLUMNS + 1) // 2

Permission: TypeAlias = Literal["start", "stop", "watch"]
Fields: TypeAlias = dict[str, Any]
"""Fields of a request, without those of the `JobKey`."""
MessageT = TypeVar("MessageT", bound=Message)


_FILES = (
    alignment_pb2,
    coordinator_pb2,
    guest_pb2,
    host_pb2,
    jobs_pb2,
    online_pb2,
    party_pb2,
    prediction_pb2,
    process_pb2,
)
_CONTRACT: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in _FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""Each method that the contract defines, by its path."""


@dataclass(frozen=True)
class Route:
    """One method of the contract. The servicer answers a plain route with its own method of the same name.

    Attributes:
        name: its service and its method, separated by a slash.
        callers: roles that may call it.
        permission: the setting in the coordinator's `operators` that lists who may call it, in place of `callers`.
        any_version: whether processes that speak another version of the protocol may call it.
    """

    name: str
    callers: frozenset[Role] = frozenset()
    _: KW_ONLY
    permission: Permission | None = None
    any_version: bool = False

    @property
    def service(self) -> str:
        """The name of its service."""
        return self.name.partition("/")[0]

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.name.partition("/")[2]

    @cached_property
    def path(self) -> str:
        """The name by which gRPC calls it."""
        return f"/{PACKAGE}.{self.name}"

    @property
    def streams_requests(self) -> bool:
        """Whether the method takes a stream of requests."""
        return bool(self._descriptor.client_streaming)

    @property
    def streams_responses(self) -> bool:
        """Whether the method answers with a stream."""
        return bool(self._descriptor.server_streaming)

    @cached_property
    def request(self) -> type[Request]:
        """The type of its request."""
        return GetMessageClass(self._descriptor.input_type)

    @cached_property
    def response(self) -> type[Request]:
        """The type of its response."""
        return GetMessageClass(self._descriptor.output_type)

    @property
    def _descriptor(self) -> MethodDescriptor:
        return _CONTRACT[self.path]


@dataclass(frozen=True, kw_only=True)
class MessageRoute(Route):
    """A method that carries one message of a job. The servicer passes it to the job. The response is empty.

    Attributes:
        message: the type of the message.
        encode: returns the fields of the request for a message.
        decode: returns the message in a request.
    """

    message: type[Message]
    encode: Callable[[Any], Fields]
    decode: Callable[[Any], Message]

    @cached_property
    def chunk(self) -> Any:
        """The type that serialises and parses a request of a stream."""
        return self.request


@dataclass(frozen=True, kw_only=True)
class VectorRoute(MessageRoute):
    """A method that carries a vector as a stream of chunks; see `codec.encode_piece` and `elements.encode_elements`.

    Attributes:
        senders: roles that may send each kind of vector; no other kind is accepted.
    """

    senders: Mapping[Kind, frozenset[Role]]

    @cached_property
    def chunk(self) -> Any:
        """See MessageRoute: the type of the request, or one that does not copy its elements."""
        return ElementsRequest if self.message is ElementPiece else self.request


def route_for(sender: Role, receiver: Role, message: Message) -> MessageRoute:
    """Return the method by which a message travels from one role to another.

    Raises:
        KeyError: no method carries it there.
    """
    service = "PartyService" if sender is Role.COORDINATOR else f"{receiver.value.capitalize()}Service"
    return _BY_MESSAGE[service, type(message)]


def encode(job: JobKey, message: Message, route: MessageRoute) -> Request:
    """Return the request that carries a message; for vectors, which travel in chunks, see `VectorRoute`."""
    return route.request(job=job.name, run_id=job.run_id, **route.encode(message))


def decode(request: Request | ElementsRequest) -> Message:
    """Return the message in a request.

    Raises:
        ProtocolError: the request is not a valid message of the protocol.
        ConfigError: the settings of the job that it offers cannot be used.
    """
    return _BY_REQUEST[type(request)].decode(request)


# --- the codec of each message


def _encode_nothing(message: Message) -> Fields:
    return {}


def _encode_open(message: OpenJob) -> Fields:
    modulus = message.modulus.to_bytes(-(-message.modulus.bit_length() // 8), "big")
    return {
        "job_json": message.job.model_dump_json(),
        "modulus": modulus,
        "party": encode_party(message.party),
        "job_id": message.job_id,
        "was_ready": message.was_ready,
        "seed": message.seed,
    }


def _decode_open(request: party_pb2.OpenJobRequest) -> OpenJob:
    job = parse_job(request.job_json)
    if request.job != job.name:
        refuse(f"a job under a name other than the one in its settings, {job.name}")
    if len(request.modulus) > MAX_KEY_BITS // 8:
        refuse(f"a public key of more than {MAX_KEY_BITS} bits")
    party = decode_party(request.party)
    if len(request.job_id) not in (0, RUN_ID_BYTES):
        refuse(f"a job ID of {len(request.job_id)} bytes")
    seed, with_shares = decode_seed(request.seed), job.protocol == "shares"
    if bool(seed) is not with_shares or bool(request.modulus) is with_shares:
        refuse(f"a job under the protocol {job.protocol} with the keys of another protocol")
    return OpenJob(job, mpz.from_bytes(request.modulus, "big"), party, request.job_id, request.was_ready, seed)


def _encode_begin(message: BeginRound) -> Fields:
    return {
        "key": encode_key(message.key),
        "step": message.step.tolist(),
        "epoch": message.batch.epoch,
        "batch": message.batch.index,
        "fold": message.batch.fold,
        "held_out": message.batch.held_out,
        "gradient": message.gradient,
        "direction": [] if message.direction is None else message.direction.tolist(),
        "curvature_draw": message.curvature_draw,
        "loss": message.loss,
        "evaluate_at": [] if message.evaluate_at is None else message.evaluate_at.tolist(),
        "over": message.over,
        "peer_columns": message.peer_columns,
        "shares": None if message.shares is None else _encode_round_shares(message.shares),
        "information": message.information,
        "fourth_bits": message.fourth_bits,
    }


def _decode_begin(request: party_pb2.BeginRoundRequest) -> BeginRound:
    direction = decode_floats(request.direction, "direction")
    evaluate_at = decode_floats(request.evaluate_at, "point to evaluate")
    return BeginRound(
        key=decode_key(request.key),
        step=decode_floats(request.step, "step"),
        batch=Batch(request.epoch, request.batch, request.fold, request.held_out),
        gradient=request.gradient,
        direction=direction if len(direction) else None,
        curvature_draw=request.curvature_draw,
        loss=decode_float(request.loss, "loss") if request.HasField("loss") else None,
        evaluate_at=evaluate_at if len(evaluate_at) else None,
        over=request.over,
        peer_columns=request.peer_columns,
        shares=_decode_round_shares(request.shares) if request.HasField("shares") else None,
        information=request.information,
        fourth_bits=request.fourth_bits,
    )


def _encode_round_shares(shares: RoundShares) -> party_pb2.RoundShares:
    weights, holdout = (
        None
        if each is None
        else party_pb2.WeightShares(
            score=pack_elements(each.score), opened=pack_elements(each.opened), loss=pack_elements(each.loss)
        )
        for each in (shares.weights, shares.holdout)
    )
    return party_pb2.RoundShares(weights=weights, holdout=holdout)


def _decode_round_shares(shares: party_pb2.RoundShares) -> RoundShares:
    weights, holdout = (
        _decode_weight_shares(getattr(shares, name)) if shares.HasField(name) else None
        for name in ("weights", "holdout")
    )
    return RoundShares(weights, holdout)


def _decode_weight_shares(shares: party_pb2.WeightShares) -> WeightShares:
    score, opened, loss = (
        unpack_elements(data, "shares of weights") for data in (shares.score, shares.opened, shares.loss)
    )
    if not len(opened) < len(score) == len(loss):
        refuse(f"shares of {len(score)} and {len(loss)} weights, of which {len(opened)} belong to the receiver")
    return WeightShares(score, opened, loss)


def _encode_finish(message: FinishJob) -> Fields:
    return {
        "round": message.round,
        "step": message.step.tolist(),
        "loss": message.loss,
        "epochs": message.epochs,
        "reason": message.reason,
        "round_loss": message.round_loss,
        "share": None if message.share is None else pack_elements(message.share),
        "compared": [
            party_pb2.ComparedPenalty(
                l1=each.l1,
                l2=each.l2,
                loss=each.loss,
                standard_error=each.standard_error,
                auc=each.auc,
                auc_error=each.auc_error,
                n_terms=each.n_terms,
                is_chosen=each.is_chosen,
            )
            for each in message.compared
        ],
        "inference": None if message.inference is None else _encode_covariance(message.inference),
    }


def _decode_compared(each: party_pb2.ComparedPenalty) -> ComparedPenalty:
    l1, l2, n_terms = (decode_float(number, "penalty") for number in (each.l1, each.l2, each.n_terms))
    loss = decode_float(each.loss, "loss of a penalty") if each.HasField("loss") else None
    error = decode_float(each.standard_error, "standard error") if each.HasField("standard_error") else None
    if min(l1, l2, n_terms) < 0 or (loss is None) is not (error is None) or (each.is_chosen and loss is None):
        refuse("a penalty that no cross-validation compares")
    auc = decode_float(each.auc, "AUC of a penalty") if each.HasField("auc") else None
    auc_error = decode_float(each.auc_error, "standard error") if each.HasField("auc_error") else None
    if (auc is None) is not (auc_error is None) or not 0 <= (auc or 0) <= 1 or (auc is not None and loss is None):
        refuse("an AUC that no cross-validation measures")
    return ComparedPenalty(l1, l2, loss, error, auc, auc_error, n_terms, each.is_chosen)


def _encode_covariance(own: OwnCovariance) -> party_pb2.OwnCovariance:
    return party_pb2.OwnCovariance(
        covariance=own.covariance.tolist(),
        warnings=own.warnings,
        may_be_separated=own.may_be_separated,
        depends=own.depends,
    )


def _decode_covariance(own: party_pb2.OwnCovariance) -> OwnCovariance:
    if len(own.warnings) > MAX_WARNINGS:
        refuse(f"{len(own.warnings)} warnings about standard errors; the maximum is {MAX_WARNINGS}")
    covariance = decode_floats(own.covariance, "covariance", _MAX_COVARIANCE)
    return OwnCovariance(covariance, tuple(map(decode_text, own.warnings)), own.may_be_separated, own.depends)


def _decode_finish(request: party_pb2.FinishJobRequest) -> FinishJob:
    step, loss = decode_floats(request.step, "step"), decode_float(request.loss, "loss")
    round_loss = decode_float(request.round_loss, "round_loss") if request.HasField("round_loss") else None
    share = unpack_elements(request.share, "shares of the final weights") if request.HasField("share") else None
    if len(request.compared) > MAX_PENALTIES:
        refuse(f"{len(request.compared)} compared penalties; the maximum is {MAX_PENALTIES}")
    compared = tuple(map(_decode_compared, request.compared))
    reason = decode_text(request.reason)
    inference = _decode_covariance(request.inference) if request.HasField("inference") else None
    return FinishJob(request.round, step, loss, request.epochs, reason, round_loss, share, inference, compared)


def _encode_check(message: Waiting) -> Fields:
    return {"has_progressed": message.has_progressed}


def _decode_check(request: party_pb2.CheckJobRequest) -> Waiting:
    return Waiting(request.has_progressed)


def _decode_waiting(request: coordinator_pb2.ReportWaitingRequest) -> Waiting:
    return Waiting()


def _encode_end(message: Failed) -> Fields:
    return {"reason": message.reason, "outcome": encode_outcome(message.outcome)}


def _decode_end(request: party_pb2.FailJobRequest) -> Failed:
    return Failed(decode_text(request.reason), decode_outcome(request.outcome))


def _encode_failure(message: Failed) -> Fields:
    return {"reason": message.reason}


def _decode_failure(request: coordinator_pb2.ReportFailureRequest) -> Failed:
    return Failed(decode_text(request.reason))


def _encode_challenge(message: IdChallenge) -> Fields:
    return {
        "nonce": message.nonce,
        "n_rows": message.n_rows,
        "n_columns": message.n_columns,
        "seed": message.seed,
        "weight_bits": message.weight_bits,
    }


def _decode_challenge(request: host_pb2.ChallengeIdsRequest) -> IdChallenge:
    n_rows = decode_count(request.n_rows, MAX_TOTAL, "rows")
    nonce, n_columns = decode_digest(request.nonce, "nonce"), decode_columns(request.n_columns)
    weight_bits = decode_weight_bits(request.weight_bits) if request.HasField("weight_bits") else None
    return IdChallenge(nonce, n_rows, n_columns, decode_seed(request.seed), weight_bits)


def _encode_proof(message: IdProof) -> Fields:
    return {
        "nonce": message.nonce,
        "digest": message.digest,
        "n_columns": message.n_columns,
        "seed": message.seed,
    }


def _decode_proof(request: guest_pb2.ProveIdsRequest) -> IdProof:
    nonce, digest = decode_digest(request.nonce, "nonce"), decode_digest(request.digest, "digest")
    return IdProof(nonce, digest, decode_columns(request.n_columns), decode_seed(request.seed))


def _encode_confirmation(message: IdConfirmation) -> Fields:
    return {"digest": message.digest}


def _decode_confirmation(request: host_pb2.ConfirmIdsRequest) -> IdConfirmation:
    return IdConfirmation(decode_digest(request.digest, "digest"))


_PURPOSE_NUMBERS = {each: rounds_pb2.RolePurpose.Value(f"ROLE_PURPOSE_{each.name}") for each in Purpose}
_PURPOSES: dict[int, Purpose] = {number: each for each, number in _PURPOSE_NUMBERS.items()}


def _encode_roles(message: RolePiece) -> Fields:
    return {
        "purpose": _PURPOSE_NUMBERS[message.purpose],
        "is_owner": message.is_owner,
        "offset": message.offset,
        "total": message.total,
        "roles": message.roles,
    }


def _decode_roles(request: rounds_pb2.SendRowRolesRequest) -> RolePiece:
    purpose = _PURPOSES.get(request.purpose)
    if purpose is None:
        refuse(f"roles of rows for an unknown purpose ({request.purpose})")
    total, n_rows = decode_count(request.total, MAX_TOTAL, "rows"), len(request.roles)
    if n_rows > ROLE_PIECE or request.offset + n_rows > total:
        refuse(f"the roles of rows {request.offset} to {request.offset + n_rows} of {total}")
    return RolePiece(purpose, request.is_owner, request.offset, total, request.roles)


def _encode_holdout(message: HoldoutScores) -> Fields:
    scores = message.scores.tolist()
    return {"key": encode_key(message.key), "offset": message.offset, "total": message.total, "scores": scores}


def _decode_holdout(request: guest_pb2.SendHoldoutScoresRequest) -> HoldoutScores:
    scores = decode_floats(request.scores, "hold-out score")
    if request.total > MAX_TOTAL or not 0 < len(scores) <= request.total - request.offset:
        refuse(f"hold-out scores {request.offset} to {request.offset + len(scores)} of {request.total}")
    return HoldoutScores(decode_key(request.key), request.offset, request.total, scores)


def _encode_alignment(message: AlignmentProgress) -> Fields:
    return asdict(message)


def _decode_alignment(request: coordinator_pb2.ReportAlignmentRequest) -> AlignmentProgress:
    n_shards = decode_count(request.n_shards, MAX_TOTAL, "shards")
    n_host, n_guest = (decode_count(n_ids, MAX_TOTAL, "IDs") for n_ids in (request.n_host, request.n_guest))
    if request.done > n_shards or request.n_common > min(n_host, n_guest):
        refuse("the progress of an alignment with more shards or IDs than there are")
    return AlignmentProgress(request.done, n_shards, n_host, n_guest, request.n_common)


_STAGE_NUMBERS = {stage: coordinator_pb2.Stage.Value(f"STAGE_{stage.name}") for stage in Stage}
_STAGES: dict[int, Stage] = {number: stage for stage, number in _STAGE_NUMBERS.items()}


def _encode_stage(message: StageProgress) -> Fields:
    return {"stage": _STAGE_NUMBERS[message.stage], "done": message.done}


def _decode_stage(request: coordinator_pb2.ReportProgressRequest) -> StageProgress:
    stage, done = _STAGES.get(request.stage), decode_float(request.done, "progress")
    if stage is None or not 0 <= done <= 1:
        refuse(f"a progress of {done:g} in stage {request.stage}")
    return StageProgress(stage, done)


def _encode_ready(message: Ready) -> Fields:
    shares = None
    if message.shares is not None:
        vectors = {"penalty": message.shares.penalty.tolist(), "start": message.shares.start.tolist()}
        shares = coordinator_pb2.SharesReady(**asdict(message.shares) | vectors)
    return {"n_train": message.n_train, "n_columns": message.n_columns, "round": message.round, "shares": shares}


def _decode_ready(request: coordinator_pb2.ReportReadyRequest) -> Ready:
    n_train, n_columns = decode_count(request.n_train, MAX_TOTAL, "rows"), decode_columns(request.n_columns)
    shares = _decode_shares_ready(request.shares, n_columns) if request.HasField("shares") else None
    return Ready(n_train, n_columns, request.round, shares)


def _decode_shares_ready(shares: coordinator_pb2.SharesReady, n_columns: int) -> SharesReady:
    penalty, total_weight = decode_floats(shares.penalty, "penalty"), decode_float(shares.total_weight, "total weight")
    if not shares.seed or len(penalty) not in (0, n_columns):
        refuse(f"a party without a seed, or with {len(penalty)} penalties of {n_columns} columns")
    bits = shares.norm_bits, shares.spread_bits
    if shares.n_holdout > MAX_TOTAL or max(map(abs, bits)) > MAX_NORM_BITS:
        refuse(f"{shares.n_holdout} hold-out rows, norms of {bits[0]} bits and singular values of {bits[1]} bits")
    if (penalty < 0).any() or total_weight < 0:
        refuse("a negative penalty or total weight")
    if shares.fourth_bits > MAX_NORM_BITS:
        refuse(f"fourth powers of {shares.fourth_bits} bits")
    start = decode_floats(shares.start, "start")
    if len(start) not in (0, n_columns):
        refuse(f"a start of {len(start)} weights for {n_columns} columns")
    if len(shares.fold_sizes) > MAX_FOLDS:
        refuse(f"{len(shares.fold_sizes)} folds")
    fold_sizes = tuple(decode_count(size, MAX_TOTAL, "rows of a fold") for size in shares.fold_sizes)
    weight_bits = decode_weight_bits(shares.weight_bits) if shares.HasField("weight_bits") else None
    return SharesReady(
        decode_seed(shares.seed),
        shares.n_holdout,
        *bits,
        penalty,
        weight_bits,
        total_weight,
        start,
        shares.fourth_bits,
        fold_sizes,
    )


def _encode_rows_done(message: RowsDone) -> Fields:
    return {"key": encode_key(message.key), "n_rows": message.n_rows}


def _decode_rows_done(request: coordinator_pb2.ReportRowsDoneRequest | host_pb2.ConfirmRowsRequest) -> RowsDone:
    return RowsDone(decode_key(request.key), decode_count(request.n_rows, MAX_TOTAL, "rows"))


def _encode_out_of_range(message: OutOfRange) -> Fields:
    return {"key": encode_key(message.key)}


def _decode_out_of_range(request: coordinator_pb2.ReportOutOfRangeRequest) -> OutOfRange:
    return OutOfRange(decode_key(request.key))


def _encode_evaluation(message: Evaluation) -> Fields:
    return {"key": encode_key(message.key), "log_loss": message.log_loss, "auc": message.auc}


def _decode_evaluation(request: coordinator_pb2.ReportEvaluationRequest) -> Evaluation:
    auc = decode_float(request.auc, "AUC") if request.HasField("auc") else None
    return Evaluation(decode_key(request.key), decode_float(request.log_loss, "log loss"), auc)


def _encode_bin_sizes(message: BinSizes) -> Fields:
    return {
        "columns": [
            guest_pb2.FineBins(
                n_rows=each.n_rows, ordered=each.ordered, has_missing=each.has_missing, keep_from=each.keep_from
            )
            for each in message.columns
        ]
    }


def _decode_bin_sizes(request: guest_pb2.SendBinSizesRequest) -> BinSizes:
    columns = tuple(
        FineBins(tuple(each.n_rows), each.ordered, each.has_missing, each.keep_from) for each in request.columns
    )
    if not 0 < sum(len(each.n_rows) for each in columns) <= MAX_FINE:
        refuse(f"{sum(len(each.n_rows) for each in columns)} fine bins; expected 1 to {MAX_FINE}")
    for each in columns:
        if not 2 <= len(each.n_rows) <= MAX_FINE_BINS + 1 or not 0 < sum(each.n_rows) <= MAX_TOTAL:
            refuse(f"a column of {sum(each.n_rows)} rows in {len(each.n_rows)} fine bins")
        if each.keep_from > MAX_TOTAL:
            refuse(f"bins that are kept from {each.keep_from} rows on")
    return BinSizes(columns)


def _encode_merged(message: MergedBins) -> Fields:
    return {
        "columns": [host_pb2.MergedColumn(groups=each.groups, n_positive=each.n_positive) for each in message.columns]
    }


def _decode_merged(request: host_pb2.SendMergedBinsRequest) -> MergedBins:
    columns = tuple(MergedColumn(tuple(each.groups), tuple(each.n_positive)) for each in request.columns)
    if sum(len(each.groups) for each in columns) > MAX_FINE:
        refuse(f"merged bins of more than {MAX_FINE} fine bins")
    for each in columns:
        n_groups = len(each.n_positive)
        if set(each.groups) != set(range(n_groups)) or max((*each.n_positive, 0)) > MAX_TOTAL:
            refuse(f"a column of {len(each.groups)} fine bins and {n_groups} merged ones that do not fit together")
    return MergedBins(columns)


def _decode_finished(request: coordinator_pb2.ReportFinishedRequest) -> Finished:
    return Finished()


def _encode_piece(piece: VectorPiece | ElementPiece) -> Fields:
    raise TypeError("a vector travels in chunks: use encode_piece or encode_elements")


# --- the table

_HOST, _GUEST, _COORDINATOR = (frozenset({role}) for role in (Role.HOST, Role.GUEST, Role.COORDINATOR))
_PARTIES = _HOST | _GUEST


def _message(
    name: str,
    callers: frozenset[Role],
    message: type[MessageT],
    encode: Callable[[MessageT], Fields],
    decode: Callable[[Any], MessageT],
) -> MessageRoute:
    kind: Any = message  # mypy does not accept a type variable for a member of the union that bounds it
    return MessageRoute(name, callers, message=kind, encode=encode, decode=decode)


def _vectors(name: str, senders: dict[Kind, frozenset[Role]]) -> VectorRoute:
    return VectorRoute(
        name,
        frozenset[Role]().union(*senders.values()),
        message=VectorPiece,
        encode=_encode_piece,
        decode=decode_piece,
        senders=MappingProxyType(senders),
    )


def _elements(name: str, kinds: Iterable[Kind], senders: frozenset[Role]) -> VectorRoute:
    return VectorRoute(
        name,
        senders,
        message=ElementPiece,
        encode=_encode_piece,
        decode=decode_elements,
        senders=MappingProxyType(dict.fromkeys(kinds, senders)),
    )


_BETWEEN_PARTIES = (
    Kind.MASKED_COLUMNS,
    Kind.MASKED_SCORES,
    Kind.MASKED_RESIDUAL,
    Kind.WEIGHTS,
    Kind.SEPARATION,
    Kind.MASKED_SLOPES,
    Kind.ROUNDED_SLOPES,
    Kind.SLOPE_COLUMNS,
    Kind.FINE_COLUMNS,
)
_FROM_HOST = (*_BETWEEN_PARTIES, Kind.UNWEIGHTED_SLOPES, Kind.UNWEIGHTED_RESIDUAL, Kind.COUNTS)

ROUTES: tuple[Route, ...] = (
    _message("PartyService/OpenJob", _COORDINATOR, OpenJob, _encode_open, _decode_open),
    _message("PartyService/BeginRound", _COORDINATOR, BeginRound, _encode_begin, _decode_begin),
    _elements("PartyService/SendElements", [Kind.DEALT, Kind.DEALT_SLOPES, Kind.COUNTS], _COORDINATOR),
    _message("PartyService/FinishJob", _COORDINATOR, FinishJob, _encode_finish, _decode_finish),
    _message("PartyService/CheckJob", _COORDINATOR, Waiting, _encode_check, _decode_check),
    _message("PartyService/FailJob", _COORDINATOR, Failed, _encode_end, _decode_end),
    _message("HostService/ChallengeIds", _GUEST, IdChallenge, _encode_challenge, _decode_challenge),
    _message("HostService/ConfirmIds", _GUEST, IdConfirmation, _encode_confirmation, _decode_confirmation),
    _message("HostService/SendRowRoles", _GUEST, RolePiece, _encode_roles, _decode_roles),
    _message("HostService/SendMergedBins", _GUEST, MergedBins, _encode_merged, _decode_merged),
    _message("HostService/ConfirmRows", _GUEST, RowsDone, _encode_rows_done, _decode_rows_done),
    _vectors("HostService/SendVector", {Kind.RESIDUAL: _GUEST, Kind.TOTAL_CHANGE: _GUEST}),
    _elements("HostService/SendElements", _BETWEEN_PARTIES, _GUEST),
    _message("GuestService/ProveIds", _HOST, IdProof, _encode_proof, _decode_proof),
    _message("GuestService/SendRowRoles", _HOST, RolePiece, _encode_roles, _decode_roles),
    _vectors("GuestService/SendVector", {Kind.SCORES: _HOST, Kind.SQUARES: _HOST, Kind.SCORE_CHANGE: _HOST}),
    _elements("GuestService/SendElements", _FROM_HOST, _HOST),
    _message("GuestService/SendBinSizes", _HOST, BinSizes, _encode_bin_sizes, _decode_bin_sizes),
    _message("GuestService/SendHoldoutScores", _HOST, HoldoutScores, _encode_holdout, _decode_holdout),
    _message("CoordinatorService/ReportProgress", _PARTIES, StageProgress, _encode_stage, _decode_stage),
    _message("CoordinatorService/ReportAlignment", _GUEST, AlignmentProgress, _encode_alignment, _decode_alignment),
    _message("CoordinatorService/ReportReady", _PARTIES, Ready, _encode_ready, _decode_ready),
    _vectors("CoordinatorService/SendVector", {Kind.GRADIENT: _PARTIES, Kind.CURVATURE: _PARTIES, Kind.LOSS: _GUEST}),
    _elements("CoordinatorService/SendElements", [Kind.SUMS], _PARTIES),
    _message("CoordinatorService/ReportRowsDone", _PARTIES, RowsDone, _encode_rows_done, _decode_rows_done),
    _message("CoordinatorService/ReportOutOfRange", _PARTIES, OutOfRange, _encode_out_of_range, _decode_out_of_range),
    _message("CoordinatorService/ReportEvaluation", _GUEST, Evaluation, _encode_evaluation, _decode_evaluation),
    _message("CoordinatorService/ReportFinished", _PARTIES, Finished, _encode_nothing, _decode_finished),
    _message("CoordinatorService/ReportWaiting", _PARTIES, Waiting, _encode_nothing, _decode_waiting),
    _message("CoordinatorService/ReportFailure", _PARTIES, Failed, _encode_failure, _decode_failure),
    Route("AlignmentService/OpenAlignment", _GUEST),
    Route("AlignmentService/IntersectShard", _GUEST),
    Route("AlignmentService/ConfirmShard", _GUEST),
    Route("AlignmentService/CloseAlignment", _GUEST),
    Route("PredictionService/OpenPrediction", _GUEST),
    Route("PredictionService/AlignPrediction", _GUEST),
    Route("PredictionService/SettleShard", _GUEST),
    Route("PredictionService/GetScores", _GUEST),
    Route("PredictionService/ClosePrediction", _GUEST),
    Route("OnlineService/GetList", _GUEST),
    Route("OnlineService/AnswerPoints", _GUEST),
    Route("ScoreService/Score", _GUEST),
    Route("JobService/StartJob", permission="start"),
    Route("JobService/GetJob", permission="watch"),
    Route("JobService/ListJobs", permission="watch"),
    Route("JobService/ListRounds", permission="watch"),
    Route("JobService/WatchJob", permission="watch"),
    Route("JobService/StopJob", permission="stop"),
    Route("JobService/ResumeJob", permission="start"),
    Route("ProcessService/Describe", frozenset(Role), any_version=True),
)
"""Every method that the processes serve to each other and to operators."""

MESSAGE_ROUTES = tuple(route for route in ROUTES if isinstance(route, MessageRoute))
ROUTE_AT = MappingProxyType({route.path: route for route in ROUTES})
"""Each route by its path."""
OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
"""Methods for every caller that can connect. Under TLS, every caller has a certificate from a trusted authority."""

_BY_MESSAGE = {(route.service, route.message): route for route in MESSAGE_ROUTES}
_BY_REQUEST: dict[type, MessageRoute] = {
    kind: route for route in MESSAGE_ROUTES for kind in (route.request, route.chunk)
}
