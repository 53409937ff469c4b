"""Documents, and the values that they consist of."""
