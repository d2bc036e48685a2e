"""Algorithm 2 and its ingredients: numpy and array-api-compat only."""
