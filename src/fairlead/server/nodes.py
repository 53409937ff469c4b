"""Listener for agents: the CA of nodes and the server's certificate. SIGHUP re-reads the CA."""

import ssl
from datetime import timedelta
from pathlib import Path

from fairlead.agent_protocol.enrolment import Enrolment
from fairlead.config.options import Configuration, NodesOptions
from fairlead.server.authority import OWN_FILE, NodeAuthority
from fairlead.server.lxd import store_folder


class NodesServer:
    def __init__(self, configuration: Configuration) -> None:
        """Raises OSError for an invalid CA file."""
        self._configuration = configuration
        self.options: NodesOptions = configuration.nodes
        self.context: ssl.SSLContext | None = None
        self._enrolment: Enrolment | None = None
        self.read_again()

    def read_again(self) -> None:
        """Re-read the CA. Raises OSError, and then keeps the previous one."""
        if not self.options.listen:
            return
        own = self.options.authority
        path = Path(own) if own else store_folder(self._configuration) / OWN_FILE
        authority = NodeAuthority(path, timedelta(days=self.options.certificate_lifetime_days), make=not own)
        self.context = authority.server_context()
        self._enrolment = Enrolment(
            authority=authority, addresses=self.options.urls, token_seconds=self.options.token_lifetime
        )

    def enrolment(self) -> Enrolment | None:
        """Return the enrolment service; None without a TLS listener for agents."""
        return self._enrolment
