"""A party's data: its table, the preprocessing, the alignment with the other party and its part of a model."""
