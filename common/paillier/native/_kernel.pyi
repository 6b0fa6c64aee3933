from typing import Any

from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview | NDArray[Any]

paths: tuple[str, ...]

def cycles(count: int, /) -> None: ...
def enter(modulus: bytes, out: Buffer, numbers: Buffer, montgomery: bool, /) -> None: ...
def leave(modulus: bytes, out: Buffer, elements: Buffer, plaintexts: Buffer, /) -> None: ...
def add_plaintexts(modulus: bytes, out: Buffer, elements: Buffer, plaintexts: Buffer, /) -> None: ...
def multiply(modulus: bytes, out: Buffer, a: Buffer, b: Buffer, /) -> None: ...
def square(modulus: bytes, out: Buffer, a: Buffer, times: int, /) -> None: ...
def product(modulus: bytes, out: Buffer, a: Buffer, /) -> None: ...
def power(moduli: bytes, out: Buffer, bases: Buffer, exponents: bytes, first: int, stop: int, /) -> None: ...
def draw(modulus: bytes, out: Buffer, comb: Buffer, indices: Buffer, n_tables: int, /) -> None: ...
def fill_tables(modulus: bytes, tables: Buffer, bases: Buffer, n_groups: int, first: int, stop: int, /) -> None: ...
def fill_buckets(
    modulus: bytes,
    buckets: Buffer,
    tables: Buffer,
    samples: Buffer,
    offsets: Buffer,
    count: int,
    n_groups: int,
    slots: int,
    bits: int,
    fresh: bool,
    first: int,
    stop: int,
    /,
) -> None: ...
def join_buckets(
    modulus: bytes,
    out: Buffer,
    buckets: Buffer,
    slots: int,
    bits: int,
    slot_bits: int,
    first: int,
    stop: int,
    /,
) -> None: ...
