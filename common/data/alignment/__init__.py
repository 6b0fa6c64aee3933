"""Private alignment: finding the IDs that both parties hold without revealing the others. No gRPC, no clocks."""
