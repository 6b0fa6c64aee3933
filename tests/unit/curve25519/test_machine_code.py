"""What the compiler makes of the ladder, whose time must not depend on the key."""

import re
import subprocess
from pathlib import Path

from tests.support.kernel_copy import CURVE, ROOT


def test_the_ladder_counts_bits_and_has_no_other_branch(tmp_path: Path) -> None:
    """Bits of the keys become masks: nothing is compared, moved or stored on a condition, and one branch counts."""
    assembly = tmp_path / "kernel.s"
    subprocess.run(["gcc", "-O3", "-S", str(ROOT / CURVE / "ifma.c"), "-o", str(assembly)], check=True)
    text = assembly.read_text()
    ladder = text[text.index("\nladder:") : text.index(".size\tladder,")]
    assert re.findall(r".*(?:\{%k\d\}|\bcmov|vpcmp|kortest|vptest|movmsk|maskmov|\bset[a-z]+\b).*", ladder) == []
    branches = re.findall(r"^\s+j(?!mp\b)[a-z]+\b", ladder, re.MULTILINE)
    assert len(branches) == 1
    assert len(re.findall(r"\(%\w+,", ladder)) == 1  # no address depends on anything but the number of the bit
