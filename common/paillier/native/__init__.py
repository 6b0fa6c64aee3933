"""The kernel: encrypted arithmetic in C, for processors with the vector instructions it needs. See docs/kernel.md."""
