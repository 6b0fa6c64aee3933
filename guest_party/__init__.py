"""The guest: features and labels."""
