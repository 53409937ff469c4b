"""What a tenant asked for, as values. Pure: nothing here does I/O, reads a clock or knows a dataplane."""
