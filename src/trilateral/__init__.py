"""Train a logistic regression on the joint columns of two organisations without showing them to each other."""
