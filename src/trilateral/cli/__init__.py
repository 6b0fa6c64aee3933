"""The command line: to serve a role, to run jobs, and to use models."""

import os

# gRPC would write to stderr about every lost connection and every refused certificate. The project reports these
# itself. gRPC reads the variable when it is imported, which happens after this line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
