"""What the compiler makes of the ladder, whose time must not depend on the key."""

import re
import subprocess
from pathlib import Path

from tests.support.kernel_copy import CURVE, ROOT


def test_the_ladder_branches_on_the_number_of_a_bit_alone(tmp_path: Path) -> None:
    """Bits of the key become masks: nothing is compared, moved or stored on a condition, and three branches count."""
    assembly = tmp_path / "kernel.s"
    subprocess.run(["gcc", "-O3", "-S", str(ROOT / CURVE / "ifma.c"), "-o", str(assembly)], check=True)
    text = assembly.read_text()
    ladder = text[text.index("\nladder:") : text.index(".size\tladder,")]
    assert re.findall(r".*(?:\{%k\d\}|\bcmov|vpcmp|kortest|vptest|movmsk|maskmov|\bset[a-z]+\b).*", ladder) == []
    branches = re.findall(r"^\s+j(?!mp\b)[a-z]+\b", ladder, re.MULTILINE)
    assert 1 <= len(branches) <= 3  # the end of the loop, the lowest three bits, and the topmost one
    assert len(re.findall(r"\(%rdi,", ladder)) == 1  # the key is read at the number of a bit
