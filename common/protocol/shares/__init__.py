"""The protocol on secret shares: what its three roles have in common."""
