"""One server process: its life, its state folder, its health and how it describes itself to others."""
