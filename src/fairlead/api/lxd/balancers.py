"""The routes of balancers, below /1.0."""

from fairlead.api.door import Services
from fairlead.api.openapi import Operation


def routes(services: Services) -> list[Operation]:
    return []
