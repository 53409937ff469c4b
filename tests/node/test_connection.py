"""HTTP connection of an agent to a server, kept open as long as the server keeps it."""

from pathlib import Path

from fairlead.node.connection import Connection, Remote
from harness.agents import serving


async def test_connection_is_reused_for_requests_and_reopened_after_closing(tmp_path: Path):
    """With TLS each new connection is a handshake, which would be half of the server's work for its agents."""

    async with serving(tmp_path) as server:
        assert server.acceptor is not None
        connection, seen = Connection(Remote(url=server.url), 5.0), list[object]()
        for _ in range(3):
            await connection.request("GET", "/load-balancer/v2/lbaas/loadbalancers")
            seen += server.acceptor.clients.all()
        assert len({id(each) for each in seen}) == 1
        await server.close_connections()
        await connection.request("GET", "/load-balancer/v2/lbaas/loadbalancers")
        connection.close()
