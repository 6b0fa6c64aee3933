"""Reading a party's table from CSV or Parquet."""
