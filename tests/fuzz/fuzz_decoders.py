"""Fuzz the decoders, guided by coverage (`make fuzz`): every input must give a value or a public error.

    python tests/fuzz/fuzz_decoders.py -max_total_time=600 CORPUS

The first byte of an input selects the decoder, which gets the rest. CORPUS is a folder, to which the fuzzer first adds
one real request of each kind. libFuzzer's other options work too. Needs atheris, which `make fuzz` installs; it is not
a dependency because it has no wheels for some of the Python versions that this project supports.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["common"]):
    from trilateral.common.base.errors import TrilateralError
    from trilateral.common.config.job import JobConfig
    from trilateral.common.config.load import load_job
    from trilateral.common.data.model.model_file import load_model
    from trilateral.common.paillier.ciphertexts import Ciphertexts
    from trilateral.common.rpc.codec import JobKey, encode_piece, parse_job
    from trilateral.common.rpc.elements import encode_elements
    from trilateral.common.rpc.routes import MESSAGE_ROUTES, MessageRoute, decode, encode

import numpy as np
from gmpy2 import mpz
from google.protobuf.message import DecodeError

from trilateral.common.base.progress import Stage
from trilateral.common.base.roles import Role
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.protocol.batches import Batch
from trilateral.common.protocol.binning import FineBins
from trilateral.common.protocol.messages import (
    BeginRound,
    BinSizes,
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
    RoundKey,
    RoundShares,
    RowsDone,
    SharesReady,
    StageProgress,
    VectorPiece,
    WeightShares,
)
from trilateral.common.protocol.row_roles import Purpose, RolePiece

JOB = JobConfig(name="fuzzed", dataset="made")
RUN = JobKey("fuzzed", bytes(range(16)))
KEY = RoundKey(3, 1)
STEP = np.array([0.5, -0.25])
SHARES = np.arange(3, dtype=np.uint64)
WEIGHTS = WeightShares(SHARES, SHARES[:1], SHARES)
SEEDS: list[Message] = [
    OpenJob(JOB, mpz(2**255 + 95), Role.HOST),
    BeginRound(
        KEY,
        STEP,
        Batch(1, 2),
        gradient=True,
        direction=STEP,
        curvature_draw=1,
        loss=0.5,
        shares=RoundShares(WEIGHTS, WEIGHTS),
        information=True,
    ),
    BeginRound(KEY, np.zeros(0), Batch(2, fold=3, held_out=True), gradient=False, shares=RoundShares(WEIGHTS)),
    FinishJob(4, STEP, 0.4, 3, "the loss no longer changes", 0.45, SHARES, OwnCovariance(STEP, ("a warning",))),
    IdChallenge(bytes(32), 120, 3, bytes(32), 4),
    IdProof(bytes(32), bytes(32), 3, bytes(32)),
    IdConfirmation(bytes(32)),
    BinSizes((FineBins((60, 40, 20), True, True), FineBins((70, 50), False, keep_from=10))),
    MergedBins((MergedColumn((0, 1, 1), (20, 30)), MergedColumn((0, 0), (50,)))),
    RolePiece(Purpose.SPLIT, True, 0, 4, bytes([0, 1, 2, 255])),
    HoldoutScores(KEY, 0, 2, STEP),
    Evaluation(KEY, 0.5, 0.75),
    AlignmentProgress(3, 100, 1000, 900, 30),
    Ready(120, 2, 0, SharesReady(bytes(32), 30, 3, 1, STEP**2, 4, 60.0, STEP)),
    RowsDone(KEY, 8192),
    StageProgress(Stage.READING, 0.5),
    OutOfRange(KEY),
    Finished(),
    Failed("stopped by the operator"),
]
PIECE = VectorPiece(KEY, Kind.SCORES, 0, 2, Ciphertexts.of([2**500 + 1, 3], 64))
ELEMENTS = ElementPiece(KEY, Kind.MASKED_RESIDUAL, 0, 16, 3, SHARES, bytes(64))


def decoder(route: MessageRoute) -> Callable[[bytes], object]:
    parse = route.chunk.FromString
    return lambda body: decode(parse(body))


def from_file(load: Callable[[Path], object]) -> Callable[[bytes], object]:
    def read(content: bytes) -> object:
        path = Path("/tmp/fuzzed")
        path.write_bytes(content)
        return load(path)

    return read


DECODERS: list[Callable[[bytes], object]] = [
    *(decoder(route) for route in MESSAGE_ROUTES),
    lambda text: parse_job(text.decode("utf-8", "replace")),
    from_file(load_job),
    from_file(load_model),
]


def write_seeds(corpus: Path) -> None:
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = {route.message: message for route in MESSAGE_ROUTES for message in SEEDS if type(message) is route.message}
    for number, route in enumerate(MESSAGE_ROUTES):
        if route.message is VectorPiece:
            (request,) = encode_piece(RUN, PIECE)
            body = request.SerializeToString()
        elif route.message is ElementPiece:
            (framed,) = encode_elements(RUN, ELEMENTS)
            body = framed.SerializeToString()
        elif route.message in seeds:
            body = encode(RUN, seeds[route.message], route).SerializeToString()
        else:
            body = b""
        (corpus / f"seed-{number}").write_bytes(bytes([number]) + body)
    (corpus / "seed-job").write_bytes(bytes([len(MESSAGE_ROUTES)]) + JOB.model_dump_json().encode())
    (corpus / "seed-file").write_bytes(
        bytes([len(MESSAGE_ROUTES) + 1]) + b"name: fuzzed\ndataset: made\nalgorithm: {name: sqn}\n"
    )


def fuzz_one(data: bytes) -> None:
    if not data:
        return
    try:
        DECODERS[data[0] % len(DECODERS)](data[1:])
    except (TrilateralError, DecodeError):
        return


def main() -> None:
    write_seeds(Path(sys.argv[-1]))
    atheris.Setup(sys.argv, fuzz_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
