"""HTTP clients of commands and servers."""
