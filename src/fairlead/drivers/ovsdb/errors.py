"""What goes wrong between us and an OVSDB server."""


class OvsdbError(Exception):
    """Base of all errors of the OVSDB client."""


class ProtocolError(OvsdbError):
    """The peer sent what RFC 7047 does not allow; the connection is of no more use."""


class RequestError(OvsdbError):
    """The server answered a request with an error (RFC 7047 section 3.1); nothing was done."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}" if details else error)
        self.error = error
        self.details = details


class TransactionError(RequestError):
    """The server refused a transaction as a whole (RFC 7047 section 4.1.3); nothing of it was done.

    `index` is the operation that failed; None when the commit or the whole request did. A *duplicate uuid* may be our
    own insert: a cluster that changes its leader tries a transaction again by itself (ovsdb/trigger.c).
    """

    def __init__(self, error: str, details: str, index: int | None) -> None:
        super().__init__(error, details)
        self.index = index


class ConnectionLost(OvsdbError):
    """The connection ended with the request in flight: it was done or it was not, nobody knows."""


class NotConnected(OvsdbError):
    """Nothing was sent: there is no connection whose monitor is in sync."""
