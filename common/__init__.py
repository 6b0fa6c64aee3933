"""What all three processes share."""
