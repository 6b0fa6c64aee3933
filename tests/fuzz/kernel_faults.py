"""Put faults into the kernels' arithmetic, one at a time, and check that their tests catch each.

python -m tests.fuzz.kernel_faults [part of a name]     (make faults)

The kernels are those of ciphertexts and of points. Each fault is a small change of the source, as a slip in writing it
would make. Where the processor has no IFMA, `ifma` is built in plain C.
"""

import sys
from pathlib import Path
from typing import NamedTuple

from tests.support.kernel_copy import CURVE, PAILLIER, ROOT, SHARES, KernelCopy
from trilateral.common.paillier.native import _kernel


class Fault(NamedTuple):
    """One change of a source file."""

    kernel: Path
    name: str
    file: str
    right: str
    """Occurs once in the file."""
    wrong: str


def _in(kernel: Path, file: str, faults: dict[str, tuple[str, str]]) -> list[Fault]:
    return [Fault(kernel, name, file, right, wrong) for name, (right, wrong) in faults.items()]


FAULTS = (
    _in(
        PAILLIER,
        "ifma.c",
        {
            "a digit of 51 bits": ("return column & every(DIGIT_MASK)", "return column & every(DIGIT_MASK >> 1)"),
            "a carry without its sign": ("(digits)((words)column >> DIGIT_BITS)", "column >> DIGIT_BITS"),
            "a lower half for an upper one": (
                "c->upper[t] = add_upper(c->upper[t], x, y)",
                "c->upper[t] = add_lower(c->upper[t], x, y)",
            ),
            "an upper half lost between groups of columns": ("c->lower[4] + c->upper[3]", "c->lower[4]"),
            "two rows of a tile in one place": ("row(c, x, j, q[j])", "row(c, x, j & 2, q[j])"),
            "products of a square not doubled": (
                "add_lower(column[2 * i] + column[2 * i],",
                "add_lower(column[2 * i],",
            ),
            "products within four digits of a square left out": ("if (s % 2 == 0) {", "if (s % 4 == 0) {"),
            "products of a square taken twice": ("2 * i < s; i++", "2 * i <= s; i++"),
            "the mixed product of a square not doubled": ("hi[t] += hi[t]", "hi[t] += 0 * hi[t]"),
            "the carry of a sum of halves lost": ("out_hi[L] = -carry_hi", "out_hi[L] = every(0)"),
            "a carry within a sum of halves lost": ("lo += carry_lo, hi += carry_hi", "lo += carry_lo"),
            "one of two carries of sums lost": ("(s_carried & t[i]) + (t_carried & s[i])", "(s_carried & t[i])"),
            "the product of two carries lost": ("columns[L] -= s_carried & t_carried", "columns[L] -= every(0)"),
            "halves joined without the lower product": ("middle[t] + between - out[t]", "middle[t] + between"),
            "halves joined without the end of the upper product": ("if (t < 2 * U - L)", "if (t < 2 * U - L - 4)"),
            "the second mixed product without carries": ("add_carried(hi + 2 * L, s.hi, t.lo, L)", "(void)0"),
            "M of the other reduction without k m": ("if (other && s < last) tile", "if (other && s < last - 1) tile"),
            "M of the other reduction without mu": ("t[i] += other[4 * s + i]", "t[i] += every(0)"),
            "the newest digits not cleared": ("if (s) tile_by_constant(&c, t,", "if (s > 1) tile_by_constant(&c, t,"),
            "mu from three digits": ("i + j < 4; i++", "i + j < 3; i++"),
            "mu longer than four digits": ("mu[i] = digit_of(low[i])", "mu[i] = low[i]"),
            "the carry out of the last digits lost": (
                "carry += pass_carries(low, every(0))",
                "pass_carries(low, every(0))",
            ),
            "the rest of the first product with mu lost": ("c.lower[i] += low[i]", "c.lower[i] += every(0)"),
            "the last product with mu left out": ("if (s <= 2 * last) tile", "if (s < 2 * last) tile"),
            "the last products with h left out": (
                "i < last; i++) tile_by_constant",
                "i < last - 1; i++) tile_by_constant",
            ),
            "digits longer than 52 bits at rest": ("D + i] = digit_of(t[i])", "D + i] = t[i]"),
            "one modulus in all lanes": (
                "lanewise ? ((const digits *)constants)[j] :",
                "lanewise ? every(((const digits *)constants)[j][0]) :",
            ),
            "the carry of a sum lost": ("column = carry + a[i] + b[i]", "column = a[i] + b[i]"),
        },
    )
    + _in(
        PAILLIER,
        "avx2.c",
        {
            "a lower half one column too high": (
                '"vpaddq %[l], %[c0], %[c0]\\n\\t',
                '"vpaddq %[l], %[c1], %[c1]\\n\\t',
            ),
            "an upper half not added to its like": ('"vpaddq %[h], %[high], %[high]\\n\\t ', '"'),
            "the last upper half of a tile lost": ("vpaddq %[high], %[c5], %[c5]", "vpaddq %[high], %[c4], %[c4]"),
            "a carry within a sum of halves lost": (
                "_mm256_fmadd_pd(carry, scale, _mm256_sub_pd(sum, place))",
                "_mm256_sub_pd(sum, place)",
            ),
            "the carry of a sum of halves lost": ("SUB(WORDS(two104), WORDS(above))", "all(0)"),
            "one of two carries of sums lost": ("DOUBLES(t->carried), s->digits", "DOUBLES(all(0)), s->digits"),
            "the product of two carries lost": ("SUB(out[3 * lower], both)", "SUB(out[3 * lower], all(0))"),
            "the carries of the second mixed product lost": (
                "carried_digit(sums[2], sums[3], i)",
                "carried_digit(sums[2], sums[2], i)",
            ),
            "halves joined without the lower product": ("SUB(middle[i], out[i])", "middle[i]"),
            "halves joined without the end of the upper product": (
                "lower + i < 2 * upper",
                "lower + i < 2 * upper - 4",
            ),
            "squares of digits left out": ("times(&low, &high, p[s], p[s])", "times(&low, &high, p[s], p[0])"),
            "products within four digits of a square left out": ("if (s % 4 == 0)", "if (s % 8 == 0)"),
            "the lower half of a mixed square not doubled": (
                "second = ADD(second, second);\n        if (lower",
                "second = ADD(second, all(0));\n        if (lower",
            ),
            "the upper half of a mixed square not doubled": (
                "second = ADD(second, second);\n        c.c0",
                "second = ADD(second, all(0));\n        c.c0",
            ),
            "M of the other reduction without k m": ("if (lower && s % 2 == 0) tile", "if (lower && s % 4 == 0) tile"),
            "M of the other reduction without mu": ("words_of(lower->mu1)", "all(0)"),
            "the newest digits not cleared": ("if (s) tile_by_constant", "if (s > 1) tile_by_constant"),
            "mu from one digit": ("times(&high, &beyond, t1, k[0]);", ""),
            "the carry out of the last digits lost": ("carry_of(ADD(c.c1, carry_of(c.c0)))", "carry_of(c.c1)"),
            "the last products with mu left out": ("== 0 && s < D - 1)", "== 0 && s < D - 3)"),
            "the last products with h left out": ("int j = D / 4 - 1, until", "int j = D / 4 - 2, until"),
            "one modulus in all lanes": (
                "lanewise ? ((const digits *)constant)[at] :",
                "lanewise ? BROADCAST((const double *)((const digits *)constant + at)) :",
            ),
            "the carry of a sum lost": (
                "ADD(carry, ADD(words_of(a[i]), words_of(b[i])))",
                "ADD(words_of(a[i]), words_of(b[i]))",
            ),
        },
    )
    + _in(
        PAILLIER,
        "operations.h",
        {
            "a word of two digits only": ("shift > 2 * DIGIT_BITS - 64", "shift > 64"),
            "the carry of a column of words lost": ("top += sum < product", "(void)0"),
            "a borrow lost in n minus a plaintext": ("- hi[i] + borrow", "- hi[i]"),
            "a sum with a plaintext outside Montgomery form": (
                "broadcast(factor, m->power_of_r + size_of(m), m)",
                "broadcast(factor, m->power_of_r, m)",
            ),
            "an element beyond the list multiplied": ("start + lane < count ? a", "start + lane <= count ? a"),
            "the lanes' products not joined": ("int distance = LANES / 2", "int distance = LANES / 4"),
            "a squaring of a draw left out": ("(i - 1) % n_tables == 0", "(i - 1) % (2 * n_tables) == 0"),
            "a draw from one table": ("i % n_tables * entries", "0 * entries"),
        },
    )
    + _in(
        CURVE,
        "ifma.c",
        {
            "a carry out of the top worth one": (
                "times_19(x.limb[4] >> LIMB_BITS);\n    for",
                "(x.limb[4] >> LIMB_BITS);\n    for",
            ),
            "a sum without carries": ("+= y.limb[i];\n    return carry(x)", "+= y.limb[i];\n    return x"),
            "a difference below zero": ("2 * MASK - y.limb[i]", "MASK / 4 - y.limb[i]"),
            "the upper columns left out": ("column[i] + times_19(column[i + LIMBS])", "column[i]"),
            "upper halves counted once": (
                "low[i] += high[i] << 1;\n    return fold(low);\n}\n\nINLINE element square",
                "low[i] += high[i];\n    return fold(low);\n}\n\nINLINE element square",
            ),
            "upper halves in the column of the lower ones": (
                "high[i + j + 1] = add_high(high[i + j + 1], x.limb[i], y",
                "high[i + j] = add_high(high[i + j], x.limb[i], y",
            ),
            "products of a square not doubled": ("low[i] <<= 1, high[i] <<= 1", "high[i] <<= 1"),
            "squares of limbs left out": ("low[2 * i] = add_low(low[2 * i]", "low[2 * i] = add_low(low[i]"),
            "the upper half of a small product lost": ("x.limb[i] += high[i - 1]", "x.limb[i] += 0 * high[i - 1]"),
            "the top of a small product lost": ("x.limb[0] += times_19(high[4])", "x.limb[0] += 0 * high[4]"),
            "a power by another exponent": ("mul(squares(p250, 5), eleven)", "mul(squares(p250, 5), x)"),
            "p taken for a number below p": ("x.limb[0] + 19;\n", "x.limb[0] + 18;\n"),
            "the topmost bit taken along": ("w[3] >> 12 & MASK", "w[3] >> 12"),
            "bits between two words lost": ("w[0] >> 51 | w[1] << 13", "w[0] >> 51"),
            "a point of low order not counted": (
                "zeros += lane < count && (w",
                "zeros += 0 < lane && lane < count && (w",
            ),
            "the other point of the map": (
                "& first) | (other.limb[k] & ~first)",
                "& ~first) | (other.limb[k] & first)",
            ),
            "a square root in place of a square": ("square(mul(square(x), x))", "mul(square(x), x)"),
            "a swap left out": ("before = now", "before = bit > 3 ? now : before"),
            "a key without its top bit": ("|= all(UINT64_C(1) << 62)", "|= all(0)"),
            "a key whose lowest bits count": ("&= all(~UINT64_C(7))", "&= all(~UINT64_C(3))"),
        },
    )
)


TESTS = {
    CURVE: ("tests/unit/curve25519/test_points.py", "kernel"),
    PAILLIER: ("tests/unit/paillier/native/test_arithmetic.py", ""),
}
"""The tests of a kernel, and which of them use it as it is compiled here."""


def main(wanted: str) -> None:
    """Try each fault, and fail if one is not caught."""
    copy, missed = KernelCopy(ROOT / "build/faults"), []
    flags = ["-O1"] if "ifma" in _kernel.paths else ["-O1", "-DEMULATE_IFMA", "-Wno-psabi"]
    pytest = ["-m", "pytest", "-x", "-p", "no:cacheprovider"]
    copy.compile(SHARES, "gcc", ["-O1"])
    for kernel in TESTS:
        copy.compile(kernel, "gcc", flags)
    for kernel, (tests, which) in TESTS.items():
        if not copy.run(*pytest, tests, "-k", f"{which} and not emulated".removeprefix(" and "), quiet=True):
            sys.exit(f"the tests of {kernel} fail without a fault")
    for fault in FAULTS:
        if wanted not in fault.name:
            continue
        source = copy.folder / fault.kernel / fault.file
        right = source.read_text()
        assert right.count(fault.right) == 1, fault
        source.write_text(right.replace(fault.right, fault.wrong))
        copy.compile(fault.kernel, "gcc", flags)
        tests, which = TESTS[fault.kernel]
        path = which or ("avx2" if fault.file == "avx2.c" else "ifma")
        caught = not copy.run(*pytest, tests, "-k", f"{path} and not emulated", quiet=True)
        source.write_text(right)
        copy.compile(fault.kernel, "gcc", flags)
        print(f"{'caught' if caught else 'MISSED'}: {fault.name}", flush=True)
        missed += [] if caught else [fault.name]
    sys.exit(f"{len(missed)} faults were not caught" if missed else 0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
