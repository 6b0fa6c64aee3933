"""Benchmarks: each script prints figures as JSON. README.md has the commands and their results."""
