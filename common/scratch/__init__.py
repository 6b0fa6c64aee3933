"""Scratch space of a process: arrays that lie in memory while they are small, and in files without a name otherwise."""
