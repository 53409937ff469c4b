"""Documents and facts of a deployment, as values. Pure: no I/O, no clock, no knowledge of any dataplane."""
