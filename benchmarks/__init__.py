"""Measured claims: each script prints figures as JSON; README.md has the commands, and what they gave."""
