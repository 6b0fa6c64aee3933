"""The coordinator: the private key, the optimiser, the rounds."""
