"""The `fairlead` command: one module for each group of subcommands."""
