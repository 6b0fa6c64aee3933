"""Packed Paillier: keys, randomness, encrypted linear algebra. No gRPC, no files."""
