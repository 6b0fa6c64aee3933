"""The guest party: features and labels."""
