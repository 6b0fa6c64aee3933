"""The kernel: encrypted arithmetic in C, where the processor has the vectors for it. See docs/kernel.md."""
