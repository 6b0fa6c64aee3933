"""The coordinator's part of the protocol on secret shares: it deals, and opens sums over many rows."""
