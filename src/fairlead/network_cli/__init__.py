"""`fairlead network load-balancer ...`: the words of `incus network load-balancer`, for machines without that client.

It speaks to the LXD door of a Fairlead server as that client does (and would to LXD or Incus): over a unix socket, or
over HTTPS with a client certificate. Words, flags, YAML, output, errors of its own and exit codes are Incus's, so that
a script for one runs with the other; where a server refuses, its own sentence is printed. Exit codes: 0 done, 1 failed.

    commands.py    the tree of commands, each declared once; words.py: what was typed, as values; helping.py: for people
    remotes.py     which server is meant; connection.py: one request and its answer
    document.py    a load balancer as YAML and JSON have it; edits.py: pure: what a command makes of it
    actions.py     what each command does; editor.py: in an editor; tables.py: lists
"""

from fairlead.network_cli.commands import main as main
