"""Writes codec.json: worked examples of the numbers that the roles exchange.

    python tests/vectors/generate.py

Everything is fixed, so the file only changes when the format does. Randomness is passed
explicitly (a hash of a label) and never comes from the product's own sources. Large integers
are signed hexadecimal, reals are Python's float.hex().
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from gmpy2 import mpz

from trilateral.common.paillier.cipher import EncryptedVector
from trilateral.common.paillier.fixed_point import encode
from trilateral.common.paillier.keys import PrivateKey, PublicKey
from trilateral.common.paillier.packed import encrypt_with
from trilateral.common.paillier.packing import SlotLayout
from trilateral.common.paillier.product import PackedProduct

FILE = Path(__file__).with_name("codec.json")

# Keys for examples: everybody has read their primes.
KEYS = {
    "small": (
        "cdaab8325f0546020a23afee643d3573",
        "ea39680b19fd4a104d62d3d043f0633f",
    ),
    "usual": (
        "f13130b26794e31ae9ee45a7eeca43162b5a75c2d809eaa388c82542f3b61a23a7f85325eac3d1409eb5711f31a1da37"
        "fe3ff2667fa7c181c47c0a590f46d67faf9f89275a7e3e5152f52c21add2657350856c92c554557256bd08431ca96098"
        "ee2959c7c827601f83c261caa3c2d188f517069cb231cf2b1ed68b2e7e265f27",
        "c18b8dc9c16045f2e2e373cf64c2ad86b67decd7906810fde62c06337948455af46bf7abef9703ea6b789f8e2de43664"
        "57dcd05bd251a13e10bf28429b375f8021a1e35c732328caed40eef7232870869268598e84c687600f48d48a1126aad1"
        "7ebac3f12b354fa44742dfefc68496f463e87a24424311208cd7e3d3d1cb2b23",
    ),
}

FIXED_POINT = [
    # (value, fraction bits, limit bits): ties, both ends of the range, the smallest numbers
    *[(value, 0, 8) for value in (0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999999999999994)],
    *[(value, 24, 8) for value in (0.0, 1.0, -1.0, 256.0, -256.0, 1 / 3, -1 / 3, 3.141592653589793)],
    *[(value, 24, 8) for value in (2.0**-24, 2.0**-25, 3 * 2.0**-25, -(2.0**-26), 5e-324)],
    *[(value, 20, 10) for value in (1000.0000001, -1023.9999999, 0.1)],
    *[(value, 40, 22) for value in (4194304.0, -4194304.0, 1e-12)],
]

SAMPLES = [1.5, -2.25, 0.0, 7.999, -8.0, 0.125, 3.3, -0.001, 5.0, -6.5, 4.75, -1.0, 2.0, 0.5, -0.5, 6.25, -3.0, 1.125]
COLUMNS = [
    [0.5, -1.25, 3.0, -2.0, 1.75, 0.0, -0.125, 2.5, -3.5, 1.0, -1.0, 0.25, 3.999, -4.0, 0.001, 2.25, -0.75, 1.5],
    [-1.0, 4.0, -4.0, 0.375, 2.0, 1.0, -2.0, 0.0, 0.0, -0.5, 0.5, 3.0, -3.0, 1.0, -1.0, 0.0, 2.0, -2.0],
    [0.0] * 18,
]
PRODUCTS: list[dict[str, Any]] = [
    {"key": "small", "slot_bits": 36, "slots": 3, "samples": 7, "fraction_bits": [12, 10], "limit_bits": [3, 2]},
    {"key": "small", "slot_bits": 36, "slots": 1, "samples": 3, "fraction_bits": [12, 10], "limit_bits": [3, 2]},
    {"key": "usual", "slot_bits": 64, "slots": 16, "samples": 18, "fraction_bits": [30, 20], "limit_bits": [3, 2]},
]


def fixed_bits(label: str, bits: int) -> mpz:
    """Give a number of at most `bits` bits that looks random and is always the same."""
    digest = hashlib.shake_256(label.encode()).digest(-(-bits // 8))
    return mpz(int.from_bytes(digest, "big") >> -bits % 8)


def residues(public_key: PublicKey, label: str, count: int) -> tuple[list[mpz], list[mpz]]:
    """Give fixed r and their r^n modulo n^2."""
    numbers = [fixed_bits(f"{label} {i}", public_key.bits - 1) for i in range(count)]
    return numbers, [pow(r, public_key.n, public_key.n_squared) for r in numbers]


def hexadecimal(numbers: list[mpz]) -> list[str]:
    """Write signed integers as JSON strings."""
    return [format(int(number), "x") for number in numbers]


def product_case(case: dict[str, Any], index: int) -> dict[str, Any]:
    """Follow one encrypted vector from its values to the readable slots."""
    private_key = PrivateKey(*(mpz(prime, 16) for prime in KEYS[case["key"]]))
    public_key = private_key.public_key
    layout = SlotLayout(case["slot_bits"], case["slots"])
    n = case["samples"]
    samples = encode(SAMPLES[:n], case["fraction_bits"][0], case["limit_bits"][0])
    columns = encode(np.array(COLUMNS)[:, :n].T, case["fraction_bits"][1], case["limit_bits"][1])

    packed = layout.pack(samples)
    numbers, factors = residues(public_key, f"case {index} vector", len(packed))
    ciphertexts = encrypt_with(public_key, packed, factors)

    product = PackedProduct(public_key, layout, columns)
    product.update(EncryptedVector(ciphertexts))
    products: list[mpz] = product.result().elements

    side_bits = layout.slot_bits * (layout.slots - 1)
    masks = [
        fixed_bits(f"case {index} below {j}", side_bits)
        + (fixed_bits(f"case {index} above {j}", side_bits + layout.mask_bits) << side_bits + layout.slot_bits)
        for j in range(len(COLUMNS))
    ]
    mask_numbers, mask_factors = residues(public_key, f"case {index} mask", len(masks))
    hidden = encrypt_with(public_key, masks, mask_factors)
    masked = [a * b % public_key.n_squared for a, b in zip(products, hidden, strict=True)]
    opened = [private_key.decrypt(c) for c in masked]
    return {
        **case,
        "sample_values": [value.hex() for value in SAMPLES[:n]],
        "sample_integers": samples.tolist(),
        "column_values": [[value.hex() for value in column[:n]] for column in COLUMNS],
        "column_integers": columns.T.tolist(),
        "packed": hexadecimal(packed),
        "randomness": hexadecimal(numbers),
        "ciphertexts": hexadecimal(ciphertexts),
        "products": hexadecimal(products),
        "product_plaintexts": hexadecimal([private_key.decrypt(c) for c in products]),
        "masks": hexadecimal(masks),
        "mask_randomness": hexadecimal(mask_numbers),
        "masked": hexadecimal(masked),
        "masked_plaintexts": hexadecimal(opened),
        "middle_slots": [layout.read(plaintext) for plaintext in opened],
    }


def build() -> dict[str, Any]:
    """Give the content of codec.json."""
    return {
        "fixed_point": [
            {
                "value": value.hex(),
                "fraction_bits": f,
                "limit_bits": limit,
                "integer": int(encode([value], f, limit)[0]),
            }
            for value, f, limit in FIXED_POINT
        ],
        "keys": {name: {"p": p, "q": q} for name, (p, q) in KEYS.items()},
        "products": [product_case(case, index) for index, case in enumerate(PRODUCTS)],
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(build(), indent=1) + "\n")
