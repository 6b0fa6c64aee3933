"""The wire contract as Python, generated from protos/ by `make protos`."""
