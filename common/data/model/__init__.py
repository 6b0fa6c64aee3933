"""A party's part of a model: its file, its calibration and quality figures, scoring and export."""
