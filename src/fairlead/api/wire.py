"""The head of a request is bounded: httptools keeps whatever a client sends before the empty line, from anybody."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 2**17
"""Bytes of the request line and all header fields, and what one read of the socket brings on top of it."""


class BoundedHttp(HttpToolsProtocol):
    _head: int | None = None
    """Bytes of the head that is being read; None between heads."""

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += len(data)
            if self._head > LARGEST_HEAD:
                self.send_400_response("The request line and the header fields are too long.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head = None
        super().on_headers_complete()
