"""`fairlead pool`, `fairlead listener` and `fairlead local-ip`: commands for tenants, for attributes that the clients
of Octavia and Neutron have no option for.

The commands use the HTTP APIs and the configuration of those clients, and nothing else of Fairlead.
"""

from fairlead.cli.tenant.commands import add_parsers

__all__ = ["add_parsers"]
