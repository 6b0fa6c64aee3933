"""A party's part of a model: its file, scoring, calibration, quality figures and export."""
