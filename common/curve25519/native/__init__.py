"""The kernel in C, for processors with AVX-512 IFMA. See docs/kernel.md."""
