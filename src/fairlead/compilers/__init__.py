"""Model to rows: pure functions, one file a dataplane. Compilers never meet each other."""
