"""The life of a job in one process: its state machine behind gRPC, its clock, its record and its result."""
