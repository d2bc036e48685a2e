"""A Flower app: linear regression on clients that resemble each other."""
