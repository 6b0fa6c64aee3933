"""The command line: serving a role, and an operator's calls to the coordinator."""

import os

# gRPC writes about lost connections on stderr by itself, and about every caller whose certificate it refuses, as
# often as it likes to call. We say it in our own words. It reads this when it is imported, which every module
# here does later.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
