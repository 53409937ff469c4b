"""The one loop: dirty owners are compiled, compared with what was last applied, and applied."""
