"""Where the arithmetic of a party runs: in this process, or on the workers of a cluster."""
