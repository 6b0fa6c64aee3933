"""A whole training on one machine, with data that come with scikit-learn."""
