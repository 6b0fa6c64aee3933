"""Private alignment: which IDs both parties hold, without showing each other the others. No gRPC, no clocks."""
