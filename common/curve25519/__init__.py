"""Curve25519: a hash of texts to points, and X25519 with one key for many points. See `points`."""
