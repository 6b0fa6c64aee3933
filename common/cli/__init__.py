"""The command line: serving a role, and an operator's calls to the coordinator."""

import os

# gRPC writes about lost connections on stderr by itself. We say it in our own words, so only its errors
# are let through; it reads this when it is imported, which every module here does later.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
