"""What every other package may use: roles, errors, array types, files and tasks. It imports nothing of the project."""
