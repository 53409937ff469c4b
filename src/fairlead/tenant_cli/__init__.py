"""`fairlead pool` and `fairlead local-ip`: what Octavia's and Neutron's clients have no option for, for tenants.

It speaks to the doors as these clients do, by HTTP, and is configured as they are. It knows nothing else of Fairlead.
"""

from fairlead.tenant_cli.commands import add_parsers

__all__ = ["add_parsers"]
