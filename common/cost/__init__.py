"""What a job costs: seconds, bytes, memory and disk, from its sizes and from constants that were measured."""
