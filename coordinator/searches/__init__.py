"""How the coordinator searches for the optimum: on all rows, in batches, and when it stops early."""
