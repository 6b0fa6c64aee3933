"""Messages between processes: the table of routes, their wire format, calls and channels, access, errors."""

import os

# The resolver that gRPC brings along asks a name server even for names in /etc/hosts, and waits for it if it does not
# answer. gRPC reads the variable when it makes its first channel.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
