"""Run the tests of the kernels, and random calls, in builds that the compilers check.

python -m tests.fuzz.sanitize [seconds]     (make sanitize)

All kernels under gcc's address and undefined-behaviour sanitizers. Then those of ciphertexts and of points again: under
the same sanitizers with IFMA in plain C, which every processor runs, and built by clang, where undefined behaviour
traps.
"""

import os
import shutil
import subprocess
import sys

from tests.support.kernel_copy import CURVE, PAILLIER, ROOT, SHARES, KernelCopy

SANITIZERS = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
EMULATED = ["-DEMULATE_IFMA", "-Wno-psabi"]
CLANG = ["-O3", "-fsanitize=undefined", "-fsanitize-trap=undefined"]
TESTS = {
    CURVE: "tests/unit/curve25519",
    PAILLIER: "tests/unit/paillier/native",
    SHARES: "tests/unit/shares/native",
}
WITH_IFMA = (CURVE, PAILLIER)
FUZZ = "tests/fuzz/fuzz_kernel.py"


def sanitizer_libraries() -> list[str]:
    """Return what must be loaded before Python, which is not built with sanitizers."""
    return [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]


def run(copy: KernelCopy, libraries: list[str], *command: str) -> None:
    """Run Python in the copy, and end if it fails."""
    if not copy.run(*command, libraries=libraries):
        sys.exit("failed: " + " ".join(command))


def main(seconds: float) -> None:
    """Build and run everything."""
    # Python itself leaves memory allocated when it ends.
    os.environ |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    copy, libraries = KernelCopy(ROOT / "build/sanitized"), sanitizer_libraries()
    # The tests' own build of IFMA in plain C has no sanitizers.
    test = ["-m", "pytest", "-x", "-o", "timeout=1200", "-p", "no:cacheprovider", "-k", "not emulated"]
    for kernel in TESTS:
        copy.compile(kernel, "gcc", [*SANITIZERS, *WARNINGS])
    run(copy, libraries, *test, *TESTS.values())
    run(copy, libraries, FUZZ, str(seconds))
    for kernel in WITH_IFMA:
        copy.compile(kernel, "gcc", [*SANITIZERS, *WARNINGS, *EMULATED])
    run(copy, libraries, *test, *(TESTS[kernel] for kernel in WITH_IFMA))
    run(copy, libraries, FUZZ, str(seconds / 2))
    if not shutil.which("clang"):
        sys.exit("clang was not found, so its build is not tested: install it (Debian: clang)")
    for more in ([], EMULATED):
        copy.compile(SHARES, "gcc", ["-O1"])
        for kernel in WITH_IFMA:
            copy.compile(kernel, "clang", [*CLANG, *WARNINGS, *more])
        run(copy, [], *test, *(TESTS[kernel] for kernel in WITH_IFMA))
        run(copy, [], FUZZ, str(seconds / 4))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
