"""What is trained and who takes part: settings, read from YAML and checked."""
