"""Checks that an organisation runs before a training, to find what would go wrong: one module for each subject.

A check is a function of the process's configuration that yields findings. It changes nothing and does not disturb a
running process. Where possible it runs the same code that would fail later.
"""
