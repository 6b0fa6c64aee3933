"""Streams and their keys."""

import numpy as np
import pytest

from trilateral.common.shares import kernels, path
from trilateral.common.shares.keys import KEY_BYTES, Purpose, pair_seed, stream_key
from trilateral.common.shares.stream import elements

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture(params=range(path.best_level()[0] + 1), ids=lambda level: ("numpy", "avx2", "avx512")[level])
def _every_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path._Choice, "level", request.param)


@pytest.mark.usefixtures("_every_level")
def test_the_stream_is_aes_in_counter_mode() -> None:
    """The first block of purpose 1 under the key of FIPS 197, appendix B, computed with OpenSSL 3."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    for row, columns in ((0, 1), (16, 3), (8 * 10**9, 5)):
        seen = kernels.stream(key, Purpose.COLUMNS, row, 16, columns)
        first = (1 << 64) + row // 8 * columns * 4
        blocks = b"".join((first + i).to_bytes(16, "big") for i in range(16 // 8 * columns * 4))
        expected = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
        assert seen.astype("<u8").tobytes() == expected


@pytest.mark.usefixtures("_every_level")
def test_any_rows_can_be_made_by_themselves() -> None:
    key = bytes(16)
    whole = kernels.stream(key, Purpose.DEALT, 0, 160, 7)
    for first, n_rows in ((0, 16), (16, 80), (152, 8)):
        np.testing.assert_array_equal(
            kernels.stream(key, Purpose.DEALT, first, n_rows, 7), whole[7 * first : 7 * (first + n_rows)]
        )


def test_purposes_have_no_element_in_common() -> None:
    streams = [elements(bytes(16), purpose, 0, 800, 3) for purpose in Purpose]
    assert len(np.unique(np.concatenate(streams))) == len(Purpose) * 2400


def test_a_stream_and_what_it_masks_are_uniform() -> None:
    table = np.zeros(2**16, np.uint64)
    for seen in (
        elements(ONE[:16], Purpose.COLUMNS, 0, 2**16, 1),
        kernels.mask(table, TWO[:16], Purpose.COLUMNS, 0, 1),
    ):
        for byte in range(8):
            counts = np.bincount((seen >> np.uint64(8 * byte)).astype(np.uint8), minlength=256)
            assert ((counts - 256) ** 2 / 256).sum() < 400  # Chi-squared with 255 degrees of freedom.


def test_every_part_of_a_key_makes_another_key() -> None:
    seeds = [
        pair_seed(ONE, TWO),
        pair_seed(TWO, ONE),
        pair_seed(ONE, ONE),
    ]
    keys = [stream_key(seed) for seed in seeds]
    keys += [stream_key(seeds[0], *where) for where in ((1, 1), (1, 2), (2, 1), (257, 1), (1, 257))]
    assert len(set(keys)) == len(keys) == 8
    assert {len(key) for key in keys} == {KEY_BYTES}


@pytest.mark.parametrize("part", [b"", bytes(31), bytes(33)])
def test_a_seed_of_another_size_is_refused(part: bytes) -> None:
    for wrong in ((part, ONE), (ONE, part)):
        with pytest.raises(ValueError, match="does not have 32 bytes"):
            pair_seed(*wrong)
    with pytest.raises(ValueError, match="does not have 32 bytes"):
        stream_key(part)
