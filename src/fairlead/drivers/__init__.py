"""Drivers: the I/O of each dataplane. Read rows, apply changes, recognise managed rows by their mark."""
