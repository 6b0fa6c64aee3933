"""Reads tests/vectors/codec.json twice: in plain integers, then with the code under test.

The first part is the definition written out again. It imports nothing of the project and uses
no arithmetic but Python's, so an error that the code and the file share shows up here.
"""

import json
import runpy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).parents[2] / "vectors"
VECTORS = json.loads((DIRECTORY / "codec.json").read_text())

every_product = pytest.mark.parametrize("case", VECTORS["products"], ids=lambda case: f"{case['key']}-{case['slots']}")


def integers(texts: list[str]) -> list[int]:
    return [int(text, 16) for text in texts]


def primes(case: dict[str, Any]) -> tuple[int, int]:
    key = VECTORS["keys"][case["key"]]
    return int(key["p"], 16), int(key["q"], 16)


def fixed(text: str, fraction_bits: int, limit_bits: int) -> int:
    value = Fraction(float.fromhex(text))
    assert abs(value) <= 2**limit_bits
    integer: int = round(value * 2**fraction_bits)
    return integer


def paillier_decrypt(ciphertext: int, p: int, q: int) -> int:
    """Paillier's textbook decryption with lambda = (p - 1)(q - 1), then the signed representative."""
    n, order = p * q, (p - 1) * (q - 1)
    plaintext = (pow(ciphertext, order, n * n) - 1) // n * pow(order, -1, n) % n
    return plaintext - n if 2 * plaintext > n else plaintext


def test_integers_are_the_rounded_values() -> None:
    for case in VECTORS["fixed_point"]:
        assert case["integer"] == fixed(case["value"], case["fraction_bits"], case["limit_bits"])


@every_product
def test_keys_have_the_form_that_the_scheme_asks_for(case: dict[str, Any]) -> None:
    p, q = primes(case)
    assert p % 4 == q % 4 == 3
    assert all(pow(base, prime - 1, prime) == 1 for prime in (p, q) for base in (2, 3, 5, 7))
    assert case["slot_bits"] * (2 * case["slots"] - 1) + 40 <= (p * q).bit_length() - 3


@every_product
def test_samples_and_columns_are_fixed_point_numbers(case: dict[str, Any]) -> None:
    (sample_bits, column_bits), (sample_limit, column_limit) = case["fraction_bits"], case["limit_bits"]
    assert case["sample_integers"] == [fixed(text, sample_bits, sample_limit) for text in case["sample_values"]]
    assert case["column_integers"] == [
        [fixed(text, column_bits, column_limit) for text in column] for column in case["column_values"]
    ]


@every_product
def test_plaintexts_hold_consecutive_samples(case: dict[str, Any]) -> None:
    k, samples = case["slots"], case["sample_integers"]
    base = 2 ** case["slot_bits"]
    groups = [samples[start : start + k] for start in range(0, len(samples), k)]
    assert integers(case["packed"]) == [sum(d * base**i for i, d in enumerate(group)) for group in groups]


@every_product
def test_ciphertexts_are_paillier_encryptions(case: dict[str, Any]) -> None:
    p, q = primes(case)
    n = p * q
    packed, randomness = integers(case["packed"]), integers(case["randomness"])
    expected = [pow(1 + n, m, n * n) * pow(r, n, n * n) % (n * n) for m, r in zip(packed, randomness, strict=True)]
    assert integers(case["ciphertexts"]) == expected
    assert [paillier_decrypt(c, p, q) for c in expected] == packed


@every_product
def test_products_are_powers_of_the_ciphertexts(case: dict[str, Any]) -> None:
    p, q = primes(case)
    n, k, base = p * q, case["slots"], 2 ** case["slot_bits"]
    ciphertexts, packed = integers(case["ciphertexts"]), integers(case["packed"])
    for j, column in enumerate(case["column_integers"]):
        exponents = [
            sum(x * base ** (k - 1 - i) for i, x in enumerate(column[start : start + k]))
            for start in range(0, len(column), k)
        ]
        product = 1
        for ciphertext, exponent in zip(ciphertexts, exponents, strict=True):
            product = product * pow(ciphertext, exponent, n * n) % (n * n)
        assert integers(case["products"])[j] == product
        plaintext = sum(m * e for m, e in zip(packed, exponents, strict=True))
        assert integers(case["product_plaintexts"])[j] == plaintext == paillier_decrypt(product, p, q)


@every_product
def test_masks_leave_the_middle_slot_empty(case: dict[str, Any]) -> None:
    k, slot_bits = case["slots"], case["slot_bits"]
    for mask in integers(case["masks"]):
        above, rest = divmod(mask, 2 ** (slot_bits * k))
        assert 0 <= rest < 2 ** (slot_bits * (k - 1))
        assert 0 <= above < 2 ** (slot_bits * (k - 1) + 40)


@every_product
def test_the_middle_slots_are_the_inner_products(case: dict[str, Any]) -> None:
    p, q = primes(case)
    n, k, base = p * q, case["slots"], 2 ** case["slot_bits"]
    columns = case["column_integers"]
    names = ("product_plaintexts", "masks", "mask_randomness", "products", "masked", "masked_plaintexts")
    rows = zip(columns, *(integers(case[name]) for name in names), case["middle_slots"], strict=True)
    for column, plaintext, mask, r, product, masked, opened, middle in rows:
        assert masked == product * pow(1 + n, mask, n * n) * pow(r, n, n * n) % (n * n)
        assert opened == paillier_decrypt(masked, p, q) == plaintext + mask
        digit = opened // base ** (k - 1) % base
        assert middle == (digit - base if digit >= base // 2 else digit)
        exact = sum(d * x for d, x in zip(case["sample_integers"], column, strict=True))
        assert abs(middle - exact) <= (0 if k == 1 else 1)


def test_the_code_reproduces_the_file() -> None:
    assert runpy.run_path(str(DIRECTORY / "generate.py"))["build"]() == VECTORS
