"""Reports of a job: its charts, and what each party's page holds."""
