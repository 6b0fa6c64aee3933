"""A party's own table: reading, proving the IDs, splitting, preprocessing, measuring the result."""
