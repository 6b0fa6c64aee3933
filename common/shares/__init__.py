"""The arithmetic of the protocol on additive secret shares modulo 2^64. See `kernels`."""
