"""Moving messages between processes: servers, links, and the runner of a state machine."""
