"""The coordinator's part of the Paillier protocol: it holds the private key, and its questions are steps."""
