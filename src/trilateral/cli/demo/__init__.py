"""``trilateral demo``: a whole training on one machine, with data that ship with scikit-learn."""
