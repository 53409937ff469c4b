"""The HTTP client of Fairlead's own programs: requests, and errors."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fairlead.http.server_client import MAX_RETRY_AFTER, ApiClient, ServerError, is_url


@dataclass
class RecordingServer:
    """Server with prepared responses, which records requests."""

    url: str
    status: int = 200
    body: bytes = b'{"done": true}'
    came: list[Any] = field(default_factory=list)
    retry_after: str = ""


@pytest.fixture
def there() -> Iterator[RecordingServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            made.came.append((self.path, self.headers.get("authorization"), body))
            self.send_response(made.status)
            self.send_header("content-length", str(len(made.body)))
            if made.retry_after:
                self.send_header("retry-after", made.retry_after)
            self.end_headers()
            self.wfile.write(made.body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        made = RecordingServer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def test_request_is_json_with_basic_credentials(there: RecordingServer):
    assert ApiClient(url=f"{there.url}/", user="u", password="ä:b").request("POST", "/x", {"a": [1]}) == {"done": True}
    [(path, authorization, body)] = there.came
    assert (path, json.loads(body)) == ("/x", {"a": [1]})
    assert authorization == "Basic dTrDpDpi"  # RFC 7617: u:ä:b in UTF-8


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (409, b'{"error": "not now"}', "not now"),
        (401, b'{"error": {"code": 401, "message": "who are you"}}', "who are you"),
        (404, b'{"NeutronError": {"type": "X", "message": "no such port", "detail": ""}}', "no such port"),
        (409, b'{"faultcode": "Client", "faultstring": "immutable", "debuginfo": null}', "immutable"),
        (400, b'{"error": {"other": 1}}', "other"),
        (400, b"[]", "400 Bad Request"),
        (500, b"<html>", "500 Internal Server Error"),
        (200, b"<html>", "does not answer"),
    ],
)
def test_server_error_keeps_the_message_of_the_server(there: RecordingServer, status: int, body: bytes, words: str):
    there.status, there.body = status, body
    with pytest.raises(ServerError, match=words):
        ApiClient(url=there.url).request("POST", "/x")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("999999", MAX_RETRY_AFTER), ("", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0), ("9" * 5000, 0)],
    ids=["seconds", "too long", "none", "date", "negative", "no end"],
)
def test_retry_after_header_is_parsed_and_bounded(there: RecordingServer, header: str, seconds: int):
    there.status, there.body, there.retry_after = 429, b'{"error": "too many"}', header
    with pytest.raises(ServerError) as refused:
        ApiClient(url=there.url).request("POST", "/x")
    assert (refused.value.status, refused.value.retry_after) == (429, seconds)


def test_repr_of_a_server_hides_the_password():
    assert "secret" not in repr(ApiClient(url="http://there", user="u", password="secret"))


def test_unreachable_server_is_named_in_the_error():
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1 does not answer: .*refused"):
        ApiClient(url="http://127.0.0.1:1").request("GET", "/")


def test_only_http_and_https_urls_are_server_addresses():
    assert [is_url(text) for text in ("http://a", "https://a:1", "file:///etc/passwd", "a:1", "")] == [
        True, True, False, False, False
    ]  # fmt: skip
