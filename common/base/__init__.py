"""What every other package may use: roles, errors, array types, files and tasks.

This package imports nothing else of the project.
"""
