"""Messages between processes: the table of routes, their wire format, calls and channels, access, errors."""
