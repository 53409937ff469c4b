"""Process runtime without knowledge of load balancing: event loop, files, logging, systemd, subprocesses, terminal."""
