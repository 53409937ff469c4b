"""Errors of the OVSDB client."""


class OvsdbError(Exception):
    """Base of all errors of the OVSDB client."""


class ProtocolError(OvsdbError):
    """The peer violated RFC 7047; the connection is not usable any more."""


class RequestError(OvsdbError):
    """The server answered with an error (RFC 7047 section 3.1); nothing was done."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}" if details else error)
        self.error = error
        self.details = details


class TransactionError(RequestError):
    """The server rejected a transaction (RFC 7047 section 4.1.3); nothing was done.

    `index` is the failed operation; None if the commit or the whole request failed. A *duplicate uuid* may be this
    client's own insert, because a cluster retries a transaction itself when its leader changes (ovsdb/trigger.c).
    """

    def __init__(self, error: str, details: str, index: int | None) -> None:
        super().__init__(error, details)
        self.index = index


class ConnectionLost(OvsdbError):
    """The connection ended with the request in flight; the result is unknown."""


class NotConnected(OvsdbError):
    """Not connected or not in sync; nothing was sent."""
