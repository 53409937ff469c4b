"""Fetcher of keys and certificates for this node's proxies from the servers."""

from collections.abc import Sequence

from fairlead.drivers.haproxy import Fetch
from fairlead.drivers.interface import Unavailable
from fairlead.http.server_client import ServerError
from fairlead.model.queries.secrets import Found, Wanted
from fairlead.node.server_requests import Servers


def borrow_from(servers: Servers, chassis: str) -> Fetch:
    async def fetch(wanted: Sequence[Wanted]) -> Sequence[Found]:
        try:
            return await servers.ask_keys(chassis, wanted)
        except ServerError as error:
            raise Unavailable(f"no server lends keys: {error}") from None

    return fetch
