"""Put faults into the kernel's arithmetic, one at a time, and check that its tests catch each.

python -m tests.fuzz.kernel_faults [part of a name]     (make faults)

Each fault is a small change of the source, as a slip in writing it would make. Where the processor has no IFMA, `ifma`
is built in plain C.
"""

import sys
from typing import NamedTuple

from tests.support.kernel_copy import PAILLIER, ROOT, SHARES, KernelCopy
from trilateral.common.paillier.native import _kernel


class Fault(NamedTuple):
    """One change of a source file."""

    name: str
    file: str
    right: str
    """Occurs once in the file."""
    wrong: str


def _in(file: str, faults: dict[str, tuple[str, str]]) -> list[Fault]:
    return [Fault(name, file, right, wrong) for name, (right, wrong) in faults.items()]


FAULTS = _in(
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
        "products of a square not doubled": ("add_lower(column[2 * i] + column[2 * i],", "add_lower(column[2 * i],"),
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
        "the last products with h left out": ("i < last; i++) tile_by_constant", "i < last - 1; i++) tile_by_constant"),
        "digits longer than 52 bits at rest": ("D + i] = digit_of(t[i])", "D + i] = t[i]"),
        "one modulus in all lanes": (
            "lanewise ? ((const digits *)constants)[j] :",
            "lanewise ? every(((const digits *)constants)[j][0]) :",
        ),
        "the carry of a sum lost": ("column = carry + a[i] + b[i]", "column = a[i] + b[i]"),
    },
) + _in(
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


def main(wanted: str) -> None:
    """Try each fault, and fail if one is not caught."""
    copy, missed = KernelCopy(ROOT / "build/faults"), []
    flags = ["-O1"] if "ifma" in _kernel.paths else ["-O1", "-DEMULATE_IFMA", "-Wno-psabi"]
    tests = ["tests/unit/paillier/native/test_arithmetic.py", "-k", "ifma and not emulated"]
    pytest = ["-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    copy.compile(SHARES, "gcc", ["-O1"])
    copy.compile(PAILLIER, "gcc", flags)
    if not copy.run(*pytest, quiet=True):
        sys.exit("the tests fail without a fault")
    for fault in FAULTS:
        if wanted not in fault.name:
            continue
        source = copy.folder / PAILLIER / fault.file
        right = source.read_text()
        assert right.count(fault.right) == 1, fault
        source.write_text(right.replace(fault.right, fault.wrong))
        copy.compile(PAILLIER, "gcc", flags)
        caught = not copy.run(*pytest, quiet=True)
        source.write_text(right)
        print(f"{'caught' if caught else 'MISSED'}: {fault.name}", flush=True)
        missed += [] if caught else [fault.name]
    sys.exit(f"{len(missed)} faults were not caught" if missed else 0)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
