"""Settings of jobs, processes and tables: read from YAML and validated."""
