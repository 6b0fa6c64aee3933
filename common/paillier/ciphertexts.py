"""A vector of ciphertexts as it travels: big-endian numbers of equal width, one after the other."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload

from gmpy2 import mpz


@dataclass(frozen=True, slots=True, repr=False)
class Ciphertexts:
    """Ciphertexts in the bytes of the wire. Iteration and an index give numbers; a slice copies nothing.

    They may come from anyone: `PartyCipher.open` and `keys.check_ciphertexts` check them.

    Attributes:
        data: `width` bytes for each ciphertext.
        width: bytes of a ciphertext.

    Raises:
        ValueError: the bytes are not a whole number of ciphertexts.
    """

    data: bytes | memoryview
    width: int

    def __post_init__(self) -> None:
        if self.width < 1 or len(self.data) % self.width:
            raise ValueError(f"{len(self.data)} bytes are not a whole number of ciphertexts of {self.width} bytes")

    @classmethod
    def of(cls, numbers: Iterable[int | mpz], width: int) -> Self:
        """Make the vector of these numbers, each from 0 up and of at most `width` bytes."""
        return cls(b"".join([mpz(number).to_bytes(width, "big") for number in numbers]), width)

    def __len__(self) -> int:
        return len(self.data) // self.width

    def __reduce__(self) -> tuple[type[Self], tuple[bytes, int]]:
        return type(self), (bytes(self.data), self.width)

    def __iter__(self) -> Iterator[mpz]:
        data, width = self.data, self.width
        return (mpz.from_bytes(bytes(data[start : start + width]), "big") for start in range(0, len(data), width))

    @overload
    def __getitem__(self, place: int) -> mpz: ...

    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> mpz | Self:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                raise ValueError("a slice of ciphertexts must have the step 1")
            return type(self)(memoryview(self.data)[start * self.width : max(start, stop) * self.width], self.width)
        start = range(len(self))[place] * self.width
        return mpz.from_bytes(bytes(self.data[start : start + self.width]), "big")

    def __repr__(self) -> str:
        return f"Ciphertexts({len(self)} of {self.width} bytes)"


def joined(vectors: Sequence[Ciphertexts]) -> Ciphertexts:
    """Return one vector of all ciphertexts of at least one vector. They have the same width."""
    (width,) = {vector.width for vector in vectors}
    return vectors[0] if len(vectors) == 1 else Ciphertexts(b"".join([vector.data for vector in vectors]), width)
