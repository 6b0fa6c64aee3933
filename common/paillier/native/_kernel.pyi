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
def fold(modulus: bytes, out: Buffer, a: Buffer, /) -> None: ...
def power(moduli: bytes, out: Buffer, bases: Buffer, exponents: bytes, first: int, stop: int, /) -> None: ...
def draw(modulus: bytes, out: Buffer, comb: Buffer, indices: Buffer, n_tables: int, /) -> None: ...
def odd_powers(modulus: bytes, out: Buffer, bases: Buffer, inverses: Buffer, width: int, /) -> None: ...
def fill_buckets(
    modulus: bytes,
    buckets: Buffer,
    filled: Buffer,
    powers: Buffer,
    samples: Buffer,
    width: int,
    columns: int,
    slots: int,
    bits: int,
    first: int,
    stop: int,
    /,
) -> None: ...
def join_buckets(
    modulus: bytes,
    out: Buffer,
    buckets: Buffer,
    filled: Buffer,
    slots: int,
    bits: int,
    slot_bits: int,
    first: int,
    stop: int,
    /,
) -> None: ...
