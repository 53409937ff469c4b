"""Compilers: pure functions from model to rows, one package per dataplane. Compilers do not import each other."""
