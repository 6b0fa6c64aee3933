from typing import Any

from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

level: int
AVX2: int
AVX512: int

def stream(level: int, out: Buffer, key: bytes, purpose: int, first_row: int, n_columns: int, /) -> None: ...
def mask(
    level: int, out: Buffer, table: Buffer, key: bytes, purpose: int, first_row: int, n_columns: int, /
) -> None: ...
def score_part(
    level: int,
    out: Buffer,
    columns: Buffer,
    other: Buffer,
    own_weights: Buffer,
    opened: Buffer,
    other_weights: Buffer,
    mask_key: bytes,
    score_key: bytes,
    first_row: int,
    offset: bool,
    /,
) -> None: ...
def deal(
    level: int,
    for_host: Buffer,
    for_guest: Buffer,
    sum_host: Buffer,
    sum_guest: Buffer,
    sum_loss: Buffer,
    format: Buffer,
    table: Buffer,
    keys: bytes,
    a: Buffer,
    b: Buffer,
    first_row: int,
    n_rows: int,
    with_sums: bool,
    /,
) -> None: ...
def residual(
    level: int,
    d: Buffer,
    loss: Buffer,
    v: Buffer,
    digest: Buffer,
    format: Buffer,
    table: Buffer,
    key: bytes,
    dealt: Buffer,
    z: Buffer,
    first_row: int,
    host: bool,
    gradient: bool,
    /,
) -> None: ...
def add_products(level: int, sums: Buffer, table: Buffer, d: Buffer, n_vectors: int, /) -> None: ...
def scale(level: int, out: Buffer, table: Buffer, factors: Buffer, /) -> None: ...
def add_mask_products(level: int, sums: Buffer, key: bytes, o: Buffer, purpose: int, first_row: int, /) -> None: ...
def deal_waves(level: int, even: Buffer, odd: Buffer, r: Buffer, table: Buffer, n_terms: int, cut: int, /) -> None: ...
def add_waves(
    level: int,
    slope: Buffer,
    residual: Buffer,
    entropy: Buffer,
    digest: Buffer,
    coef: Buffer,
    table: Buffer,
    z: Buffer,
    even: Buffer,
    odd: Buffer,
    /,
) -> None: ...
