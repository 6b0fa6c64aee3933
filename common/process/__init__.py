"""One server process: its life, its state folder, its health and its description for its peers."""
