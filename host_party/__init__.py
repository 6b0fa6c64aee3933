"""The host: features."""
