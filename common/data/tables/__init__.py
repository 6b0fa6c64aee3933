"""Reading a party's table from CSV or Parquet.

`table_file` opens the file and yields batches of its columns, with the help of `csv_lines` for the location of a fault.
`column_reader` turns each column into IDs, labels, numbers or categories. `id_form` normalises the IDs, and
`repeated_ids` makes one row of several with the same ID. `table` puts these together into a whole table or a stream of
chunks.
"""
