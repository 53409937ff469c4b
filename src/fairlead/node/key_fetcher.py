"""Fetcher of keys and certificates for this node's proxies from the servers."""

from collections.abc import Sequence

from fairlead.drivers.haproxy import Fetch
from fairlead.drivers.interface import Unavailable
from fairlead.http.server_client import ServerError
from fairlead.model.queries.secrets import SecretRequest, SecretResponse
from fairlead.node.server_requests import Servers


def make_key_fetcher(servers: Servers, chassis: str) -> Fetch:
    async def fetch(wanted: Sequence[SecretRequest]) -> Sequence[SecretResponse]:
        try:
            return await servers.fetch_keys(chassis, wanted)
        except ServerError as error:
            raise Unavailable(f"no server sends keys: {error}") from None

    return fetch
