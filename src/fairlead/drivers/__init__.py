"""The I/O of each dataplane, and nothing else: read, apply, recognise our own rows by their mark."""
