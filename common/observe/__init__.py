"""What a process reports about itself: metrics, logs, traces and the audit log. Never a value of a row."""
