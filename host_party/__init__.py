"""The host party: features."""
