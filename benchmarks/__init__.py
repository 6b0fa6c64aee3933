"""Measured claims: each prints figures as JSON and the command that reproduces them."""
