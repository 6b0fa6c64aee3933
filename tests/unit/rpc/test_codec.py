"""Every message survives the wire, and an invalid request is refused before its values are used."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Request
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trilateral.common.base.errors import ConfigError, ProtocolError, TrilateralError
from trilateral.common.base.outcome import Outcome
from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import PARTIES, Role
from trilateral.common.config.job import JobConfig
from trilateral.common.paillier.ciphertexts import Ciphertexts
from trilateral.common.pb.v1 import coordinator_pb2, guest_pb2, host_pb2, jobs_pb2, party_pb2, rounds_pb2
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.binning import FineBins
from trilateral.common.protocol.messages import (
    ELEMENT_KINDS,
    BeginRound,
    BinSizes,
    ComparedPenalty,
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
    RoundKey,
    RoundShares,
    RowsDone,
    SharesReady,
    StageProgress,
    VectorPiece,
    Waiting,
    WeightShares,
)
from trilateral.common.protocol.row_roles import ROLE_PIECE, Purpose, RolePiece
from trilateral.common.rpc import codec
from trilateral.common.rpc.codec import MAX_FLOATS, JobKey, encode_piece, job_key, parse_job
from trilateral.common.rpc.routes import MESSAGE_ROUTES, MessageRoute, VectorRoute, decode, encode, route_for

JOB = JobConfig(name="credit", dataset="credit")
SHARED_JOB = JobConfig(name="credit", dataset="credit", protocol="shares")
RUN = JobKey("credit", bytes(range(16)))

uint32 = st.integers(0, 2**32 - 1)
column_counts = st.integers(1, MAX_FLOATS)
positive = st.integers(1, 2**32 - 1)
keys = st.builds(RoundKey, positive, positive)
finite = st.floats(allow_nan=False, allow_infinity=False)
vectors = arrays(np.float64, st.integers(0, 20), elements=finite)
nonempty = arrays(np.float64, st.integers(1, 20), elements=finite)
short = st.binary(max_size=64)
text = st.text(st.characters(categories=("L", "N", "P", "S")) | st.sampled_from(" \n"), max_size=200)
counts = st.integers(1, 2**16)
seeds = st.binary(min_size=32, max_size=32)
weight_bits = st.none() | st.integers(0, 32)
CIPHERTEXT_KINDS = sorted(set(Kind) - ELEMENT_KINDS)


def elements(n: int) -> st.SearchStrategy[Any]:
    return arrays(np.uint64, n, elements=st.integers(0, 2**64 - 1))


@st.composite
def holdout_scores(draw: st.DrawFn) -> HoldoutScores:
    scores = draw(nonempty)
    offset = draw(st.integers(0, 2**20))
    return HoldoutScores(draw(keys), offset, offset + len(scores) + draw(st.integers(0, 100)), scores)


@st.composite
def role_pieces(draw: st.DrawFn) -> RolePiece:
    roles = draw(st.binary(max_size=50))
    offset = draw(st.integers(0, 2**20))
    total = offset + len(roles) + draw(st.integers(1, 100))
    return RolePiece(draw(st.sampled_from(Purpose)), draw(st.booleans()), offset, total, roles)


@st.composite
def fine_bins(draw: st.DrawFn) -> FineBins:
    n_rows = draw(st.lists(st.integers(1, 2**20), min_size=2, max_size=21))
    return FineBins(tuple(n_rows), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2**20)))


@st.composite
def merged_columns(draw: st.DrawFn) -> MergedColumn:
    n_positive = draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=5))
    further = draw(st.lists(st.integers(0, len(n_positive) - 1), max_size=9))
    return MergedColumn((*range(len(n_positive)), *further), tuple(n_positive))


@st.composite
def pieces(draw: st.DrawFn, width: int = 64) -> VectorPiece:
    ciphertexts = draw(st.lists(st.integers(0, 256**width - 1), min_size=1, max_size=30))
    offset = draw(st.integers(0, 1000))
    total = offset + len(ciphertexts) + draw(st.integers(0, 1000))
    return VectorPiece(
        draw(keys), draw(st.sampled_from(CIPHERTEXT_KINDS)), offset, total, Ciphertexts.of(ciphertexts, width)
    )


@st.composite
def weight_shares(draw: st.DrawFn) -> WeightShares:
    n_columns = draw(st.integers(2, 9))
    return WeightShares(*(draw(elements(n)) for n in (n_columns, draw(st.integers(1, n_columns - 1)), n_columns)))


@st.composite
def ready(draw: st.DrawFn) -> Ready:
    n_columns = draw(st.integers(1, 9))
    penalties = arrays(np.float64, draw(st.sampled_from((0, n_columns))), elements=st.floats(0, 1e9))
    bits = st.integers(-64, 64)
    starts = arrays(np.float64, draw(st.sampled_from((0, n_columns))), elements=st.floats(-1e9, 1e9))
    shares = st.builds(
        SharesReady,
        seeds,
        st.integers(0, 2**31),
        bits,
        bits,
        penalties,
        weight_bits,
        st.floats(0, 1e18),
        starts,
        st.integers(0, 64),
        st.lists(st.integers(1, 2**31), max_size=100).map(tuple),
    )
    return Ready(draw(counts), n_columns, draw(uint32), draw(st.none() | shares))


not_negative = st.floats(0, 1e300)
no, number, area = st.none(), not_negative, st.floats(0, 1)
compared = (
    st.builds(ComparedPenalty, number, number, finite, finite, no, no, number, st.booleans())
    | st.builds(ComparedPenalty, number, number, finite, finite, area, finite, number, st.booleans())
    | st.builds(ComparedPenalty, number, number, no, no, no, no, number, st.just(False))
)
"""The second kind is of a choice by AUC. The third has no loss, because its values were out of range."""


MESSAGES: dict[type[Message], st.SearchStrategy[Any]] = {
    OpenJob: st.builds(OpenJob, st.just(JOB), st.integers(1, 2**8192 - 1).map(mpz), st.sampled_from(PARTIES))
    | st.builds(OpenJob, st.just(SHARED_JOB), st.just(mpz(0)), st.sampled_from(PARTIES), seed=seeds),
    IdChallenge: st.builds(IdChallenge, short, counts, column_counts, st.just(b"") | seeds, weight_bits),
    IdProof: st.builds(IdProof, short, short, column_counts, st.just(b"") | seeds),
    IdConfirmation: st.builds(IdConfirmation, short),
    RolePiece: role_pieces(),
    BinSizes: st.builds(BinSizes, st.lists(fine_bins(), min_size=1, max_size=5).map(tuple)),
    MergedBins: st.builds(MergedBins, st.lists(merged_columns(), max_size=5).map(tuple)),
    AlignmentProgress: st.builds(
        AlignmentProgress,
        done=st.integers(0, 5),
        n_shards=st.integers(5, 2**31),
        n_host=st.integers(10, 2**31),
        n_guest=st.integers(10, 2**31),
        n_common=st.integers(0, 10),
    ),
    Ready: ready(),
    BeginRound: st.builds(
        BeginRound,
        keys,
        vectors,
        st.builds(Batch, uint32, uint32, uint32, st.booleans()),
        st.booleans(),
        st.none() | nonempty,
        uint32,
        st.none() | finite,
        st.none() | nonempty,
        st.booleans(),
        uint32,
        st.none() | st.builds(RoundShares, st.none() | weight_shares(), st.none() | weight_shares()),
        st.booleans(),
        uint32,
    ),
    RowsDone: st.builds(RowsDone, keys, counts),
    OutOfRange: st.builds(OutOfRange, keys),
    FinishJob: st.builds(
        FinishJob,
        positive,
        vectors,
        finite,
        uint32,
        text,
        st.none() | finite,
        st.none() | elements(5),
        st.none() | st.builds(OwnCovariance, vectors, st.lists(text, max_size=3).map(tuple)),
        st.lists(compared, max_size=3).map(tuple),
    ),
    HoldoutScores: holdout_scores(),
    Evaluation: st.builds(Evaluation, keys, finite, st.none() | finite),
    Finished: st.builds(Finished),
    StageProgress: st.builds(StageProgress, st.sampled_from(Stage), st.floats(0, 1)),
    Waiting: st.builds(Waiting),
    Failed: st.builds(Failed, text),
}


def same(one: Any, other: Any) -> bool:
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize(
    "route", [route for route in MESSAGE_ROUTES if not isinstance(route, VectorRoute)], ids=lambda route: route.path
)
@given(data=st.data())
def test_every_message_survives_the_wire(route: MessageRoute, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[route.message])
    request = encode(RUN, message, route)
    received = route.request.FromString(request.SerializeToString())
    assert job_key(received) == RUN
    assert same(decode(received), message)


@pytest.mark.parametrize("has_progressed", [False, True])
def test_the_question_of_the_coordinator_says_whether_the_job_has_progressed(has_progressed: bool) -> None:
    message = Waiting(has_progressed)
    assert decode(encode(RUN, message, route_for(Role.COORDINATOR, Role.HOST, message))) == message


def join(requests: list[rounds_pb2.SendVectorRequest]) -> VectorPiece:
    parts = [decode(rounds_pb2.SendVectorRequest.FromString(request.SerializeToString())) for request in requests]
    first = parts[0]
    assert isinstance(first, VectorPiece)
    ciphertexts: list[mpz] = []
    for part in parts:
        assert isinstance(part, VectorPiece)
        assert (part.key, part.kind, part.total) == (first.key, first.kind, first.total)
        assert part.offset == first.offset + len(ciphertexts)
        ciphertexts += part.ciphertexts
    return VectorPiece(
        first.key, first.kind, first.offset, first.total, Ciphertexts.of(ciphertexts, first.ciphertexts.width)
    )


@given(piece=pieces(), chunk_bytes=st.integers(1, 1000))
def test_the_chunks_of_a_piece_join_to_the_piece(piece: VectorPiece, chunk_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "CHUNK_BYTES", chunk_bytes)
        requests = list(encode_piece(RUN, piece))
    assert all(len(request.ciphertexts) <= max(chunk_bytes, 64) for request in requests)
    assert same(join(requests), piece)


@pytest.mark.parametrize(("width", "count"), [(512, 512), (2048, 512), (4096, 256)])
def test_a_large_piece_is_cut_into_chunks_of_at_most_512_ciphertexts_and_a_mebibyte(width: int, count: int) -> None:
    piece = VectorPiece(RoundKey(1, 1), Kind.SCORES, 0, 600, Ciphertexts.of([7] * 600, width))
    counts = [len(request.ciphertexts) // width for request in encode_piece(RUN, piece)]
    assert counts == [count] * (600 // count) + [600 % count]


def test_a_chunk_of_more_ciphertexts_is_refused() -> None:
    most = chunk(total=513, width=64, ciphertexts=bytes(512 * 64))
    assert len(codec.decode_piece(most).ciphertexts) == 512
    with pytest.raises(ProtocolError, match="513 ciphertexts in one message; the maximum is 512"):
        codec.decode_piece(chunk(total=513, width=64, ciphertexts=bytes(513 * 64)))


def test_a_message_has_a_route_only_between_the_roles_that_exchange_it() -> None:
    assert route_for(Role.GUEST, Role.HOST, IdChallenge(b"", 1, 3)).path == "/trilateral.v1.HostService/ChallengeIds"
    assert route_for(Role.HOST, Role.COORDINATOR, Failed("")).method == "ReportFailure"
    assert route_for(Role.COORDINATOR, Role.HOST, Failed("")).method == "FailJob"
    with pytest.raises(KeyError):
        route_for(Role.HOST, Role.GUEST, Failed(""))


def chunk(**fields: Any) -> rounds_pb2.SendVectorRequest:
    good: dict[str, Any] = {
        "job": "credit",
        "key": rounds_pb2.RoundKey(round=1, attempt=1),
        "kind": rounds_pb2.VECTOR_KIND_SCORES,
        "offset": 0,
        "total": 2,
        "width": 64,
        "ciphertexts": bytes(128),
    }
    return rounds_pb2.SendVectorRequest(**good | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"width": 0},
        {"width": 1},
        {"width": 32},
        {"width": 62, "ciphertexts": bytes(124)},
        {"width": 65, "ciphertexts": bytes(130)},
        {"width": 66},
        {"width": 2050, "ciphertexts": bytes(2050)},
        {"ciphertexts": b""},
        {"ciphertexts": bytes(2**20 + 64), "total": 2**19},
        {"ciphertexts": bytes(192)},
        {"offset": 1},
        {"offset": 2**32 - 1},
        {"total": 2**31 + 1},
        {"kind": 0},
        {"kind": 99},
        {"kind": rounds_pb2.VECTOR_KIND_SUMS},
        {"key": rounds_pb2.RoundKey(round=0, attempt=1)},
        {"key": rounds_pb2.RoundKey(round=1)},
        {"key": None},
    ],
    ids=str,
)
def test_a_chunk_that_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    assert decode(chunk())
    with pytest.raises(ProtocolError):
        decode(chunk(**fields))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"purpose": 0}, "an unknown purpose"),
        ({"purpose": 9}, "an unknown purpose"),
        ({"total": 0}, "a count of 0 rows"),
        ({"total": 2**31 + 1}, "a count of 2147483649 rows"),
        ({"offset": 3}, "rows 3 to 5 of 4"),
        ({"total": 2**20, "roles": bytes(ROLE_PIECE + 1)}, f"rows 0 to {ROLE_PIECE + 1} of"),
    ],
)
def test_roles_of_rows_that_do_not_exist_are_refused(fields: dict[str, Any], problem: str) -> None:
    good: dict[str, Any] = {"purpose": rounds_pb2.ROLE_PURPOSE_SPLIT, "offset": 0, "total": 4, "roles": bytes(2)}
    assert decode(rounds_pb2.SendRowRolesRequest(**good))
    with pytest.raises(ProtocolError, match=problem):
        decode(rounds_pb2.SendRowRolesRequest(**good | fields))


@pytest.mark.parametrize(
    ("n_rows", "problem"),
    [
        ([], "0 fine bins; expected 1 to 8192"),
        ([[9]], "a column of 9 rows in 1 fine bins"),
        ([[9] * 22], "a column of 198 rows in 22 fine bins"),
        ([[2**31, 9]], "a column of 2147483657 rows"),
        ([[9] * 20] * 410, "8200 fine bins; expected 1 to 8192"),
    ],
)
def test_bins_that_no_column_has_are_refused(n_rows: list[list[int]], problem: str) -> None:
    columns = [guest_pb2.FineBins(n_rows=each) for each in n_rows]
    with pytest.raises(ProtocolError, match=problem):
        decode(guest_pb2.SendBinSizesRequest(columns=columns))


@pytest.mark.parametrize(
    ("groups", "n_positive"),
    [([0, 2], [5, 5]), ([0], [5, 5]), ([0, 1], [5]), ([0], [2**31 + 1]), ([], [5]), ([0] * 8193, [5])],
)
def test_merged_bins_that_do_not_fit_together_are_refused(groups: list[int], n_positive: list[int]) -> None:
    columns = [host_pb2.MergedColumn(groups=groups, n_positive=n_positive)]
    with pytest.raises(ProtocolError, match="merged"):
        decode(host_pb2.SendMergedBinsRequest(columns=columns))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    key = rounds_pb2.RoundKey(round=1, attempt=1)
    for request in (
        party_pb2.BeginRoundRequest(key=key, step=[0.0, value]),
        party_pb2.BeginRoundRequest(key=key, direction=[value]),
        party_pb2.BeginRoundRequest(key=key, loss=value),
        party_pb2.FinishJobRequest(round=2, loss=value),
    ):
        with pytest.raises(ProtocolError, match="finite"):
            decode(request)


def test_more_numbers_than_a_model_may_have_are_refused() -> None:
    with pytest.raises(ProtocolError, match="65537"):
        decode(party_pb2.FinishJobRequest(round=2, step=[0.0] * 65_537))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"job": "other"}, "name"),
        ({"modulus": bytes(1025)}, "8192"),
        ({"party": party_pb2.PARTY_UNSPECIFIED}, "an unknown party"),
        ({"party": 3}, "an unknown party"),
        ({"seed": bytes(32)}, "the keys of another protocol"),
        ({"seed": bytes(31)}, "a part of a seed of 31 bytes"),
        ({"job_json": SHARED_JOB.model_dump_json(), "modulus": b""}, "the keys of another protocol"),
        ({"job_json": SHARED_JOB.model_dump_json(), "seed": bytes(32)}, "the keys of another protocol"),
    ],
)
def test_an_offer_must_match_its_settings_and_have_a_valid_key(fields: dict[str, Any], problem: str) -> None:
    good: dict[str, Any] = {
        "job": "credit",
        "run_id": bytes(16),
        "job_json": JOB.model_dump_json(),
        "modulus": b"\x05",
        "party": party_pb2.PARTY_GUEST,
    }
    assert decode(party_pb2.OpenJobRequest(**good))
    with pytest.raises(ProtocolError, match=problem):
        decode(party_pb2.OpenJobRequest(**good | fields))


@pytest.mark.parametrize(
    ("job", "run_id", "problem"),
    [
        ("", bytes(16), "invalid job name"),
        ("../credit", bytes(16), "invalid job name"),
        ("credit\n", bytes(16), "invalid job name"),
        ("c" * 65, bytes(16), "invalid job name"),
        ("credit", b"", "run ID of 0 bytes"),
        ("credit", bytes(17), "run ID of 17 bytes"),
    ],
)
def test_an_invalid_job_name_or_run_id_is_refused(job: str, run_id: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError, match=problem):
        job_key(coordinator_pb2.ReportFinishedRequest(job=job, run_id=run_id))


ROUND = rounds_pb2.RoundKey(round=1, attempt=1)
WRONG_SHARES_READY: list[dict[str, Any]] = [
    {"seed": bytes(31)},
    {"n_holdout": 2**31 + 1},
    {"norm_bits": 65},
    {"norm_bits": -65},
    {"spread_bits": 65},
    {"fourth_bits": 65},
    {"spread_bits": -65},
    {"penalty": [1.0]},
    {"penalty": [1.0, -1.0]},
    {"penalty": [1.0, float("nan")]},
    {"start": [1.0]},
    {"start": [1.0, float("nan")]},
    {"weight_bits": 33},
    {"total_weight": -1.0},
    {"total_weight": float("inf")},
]
WRONG_WEIGHT_SHARES: list[dict[str, bytes]] = [
    {"score": bytes(16), "loss": bytes(16)},
    {"score": bytes(16), "opened": bytes(16), "loss": bytes(16)},
    {"score": bytes(24), "opened": bytes(8), "loss": bytes(16)},
    {"score": bytes(17), "opened": bytes(8), "loss": bytes(16)},
]


@pytest.mark.parametrize(
    "request_",
    [
        coordinator_pb2.ReportReadyRequest(n_train=0, n_columns=3),
        coordinator_pb2.ReportReadyRequest(n_train=2**31 + 1, n_columns=3),
        coordinator_pb2.ReportReadyRequest(n_train=100, n_columns=0),
        coordinator_pb2.ReportReadyRequest(n_train=100, n_columns=2**16 + 1),
        host_pb2.ChallengeIdsRequest(nonce=bytes(32), n_rows=0),
        coordinator_pb2.ReportReadyRequest(n_train=100, n_columns=2, shares=coordinator_pb2.SharesReady()),
        *(
            coordinator_pb2.ReportReadyRequest(
                n_train=100, n_columns=2, shares=coordinator_pb2.SharesReady(**{"seed": bytes(32)} | wrong)
            )
            for wrong in WRONG_SHARES_READY
        ),
        coordinator_pb2.ReportRowsDoneRequest(key=ROUND, n_rows=0),
        coordinator_pb2.ReportProgressRequest(done=0.5),
        coordinator_pb2.ReportProgressRequest(stage=coordinator_pb2.STAGE_READING, done=1.5),
        coordinator_pb2.ReportProgressRequest(stage=coordinator_pb2.STAGE_READING, done=math.nan),
        coordinator_pb2.ReportRowsDoneRequest(key=ROUND, n_rows=2**31 + 1),
        host_pb2.ChallengeIdsRequest(nonce=bytes(32), n_rows=5, n_columns=2, weight_bits=33),
        host_pb2.ChallengeIdsRequest(nonce=bytes(32), n_rows=5, n_columns=2, seed=bytes(33)),
        guest_pb2.ProveIdsRequest(nonce=bytes(32), digest=bytes(32), n_columns=2, seed=bytes(1)),
        party_pb2.FinishJobRequest(round=2, inference=party_pb2.OwnCovariance(covariance=[math.nan])),
        party_pb2.FinishJobRequest(round=2, inference=party_pb2.OwnCovariance(covariance=[0.0] * 131_329)),
        party_pb2.FinishJobRequest(round=2, inference=party_pb2.OwnCovariance(warnings=["w"] * 17)),
        party_pb2.FinishJobRequest(round=2, share=b""),
        party_pb2.FinishJobRequest(round=2, share=bytes(9)),
        party_pb2.FinishJobRequest(round=2, share=bytes(8 * (2**17 + 1))),
        *(
            party_pb2.BeginRoundRequest(
                key=ROUND, shares=party_pb2.RoundShares(holdout=party_pb2.WeightShares(**wrong))
            )
            for wrong in WRONG_WEIGHT_SHARES
        ),
        guest_pb2.SendHoldoutScoresRequest(offset=0, total=3),
        guest_pb2.SendHoldoutScoresRequest(offset=2, total=3, scores=[0.0, 0.0]),
    ],
    ids=lambda request: " ".join(str(request).split()),
)
def test_impossible_counts_are_refused_before_anything_is_sized_by_them(request_: Request) -> None:
    with pytest.raises(ProtocolError):
        decode(request_)


def test_a_peers_text_cannot_control_a_terminal_or_fill_a_log() -> None:
    failed = decode(coordinator_pb2.ReportFailureRequest(reason="no \x1b[2J disk\r\n" + "x" * 10_000))
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("no ?[2J disk?\nxxx")
    assert len(failed.reason) == 4000


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.FAILED])
def test_a_party_learns_whether_a_job_was_stopped_or_failed(outcome: Outcome) -> None:
    ended = Failed("for some reason", outcome)
    assert decode(encode(RUN, ended, route_for(Role.COORDINATOR, Role.HOST, ended))) == ended


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.FAILED])
def test_a_partys_report_is_always_a_failure(outcome: Outcome) -> None:
    ended = Failed("for some reason", outcome)
    assert decode(encode(RUN, ended, route_for(Role.HOST, Role.COORDINATOR, ended))) == Failed(ended.reason)


@pytest.mark.parametrize(
    "outcome", [jobs_pb2.OUTCOME_UNSPECIFIED, jobs_pb2.OUTCOME_FINISHED, jobs_pb2.OUTCOME_SUSPENDED]
)
def test_a_job_that_ends_without_a_model_was_stopped_or_failed(outcome: jobs_pb2.Outcome.ValueType) -> None:
    with pytest.raises(ProtocolError, match=f"the end of a job with the outcome {outcome}"):
        decode(party_pb2.FailJobRequest(reason="for some reason", outcome=outcome))


def test_the_contract_has_every_outcome() -> None:
    assert jobs_pb2.Outcome.keys() == ["OUTCOME_UNSPECIFIED", *(f"OUTCOME_{outcome.name}" for outcome in Outcome)]


def test_settings_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_job('{"name": "a", "dataset": "b", "epochs": 0, "epoch": 3, "algorithm": {"name": "adam"}}')
    assert str(refused.value).split("\n") == [
        "the job: algorithm: expected `name` to be one of sgd, sqn, lbfgs",
        "the job: epochs: expected at least 1, not 0",
        "the job: epoch: unknown key; did you mean epochs?",
    ]
    with pytest.raises(ConfigError, match="the job: name: expected 1 to 64 letters"):
        parse_job('{"name": "../b", "dataset": "b"}')


@pytest.mark.parametrize("text", ["", "not json", "[]", "3", "[" * 100_000, '{"a":' * 100_000])
def test_text_that_is_not_a_jobs_settings_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="^the job: "):
        parse_job(text)


@pytest.mark.parametrize("route", MESSAGE_ROUTES, ids=lambda route: route.path)
@given(data=st.binary(max_size=300))
def test_garbage_is_a_message_or_is_refused_with_a_public_error(route: MessageRoute, data: bytes) -> None:
    try:
        request = route.request.FromString(data)
    except DecodeError:
        return
    try:
        message = decode(request)
    except TrilateralError:
        return
    assert isinstance(message, route.message)
