"""The kernels in C, for processors with the vector instructions they need. See docs/kernel.md."""
