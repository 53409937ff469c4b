"""The HTTP client of Fairlead's own programs: requests, and errors."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fairlead.http.server_client import MAX_RETRY_AFTER, Server, ServerError, is_url


@dataclass
class There:
    """Server with prepared responses, which records requests."""

    url: str
    status: int = 200
    body: bytes = b'{"done": true}'
    came: list[Any] = field(default_factory=list)
    retry_after: str = ""


@pytest.fixture
def there() -> Iterator[There]:
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
        made = There(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        server.shutdown()
        thread.join()


def test_what_is_asked_is_json_and_says_who_asks(there: There):
    assert Server(url=f"{there.url}/", user="u", password="ä:b").ask("POST", "/x", {"a": [1]}) == {"done": True}
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
def test_an_error_has_the_servers_own_words(there: There, status: int, body: bytes, words: str):
    there.status, there.body = status, body
    with pytest.raises(ServerError, match=words):
        Server(url=there.url).ask("POST", "/x")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3), ("999999", MAX_RETRY_AFTER), ("", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0), ("-1", 0), ("9" * 5000, 0)],
    ids=["seconds", "too long", "none", "date", "negative", "no end"],
)
def test_a_refusal_names_when_to_come_again(there: There, header: str, seconds: int):
    there.status, there.body, there.retry_after = 429, b'{"error": "too many"}', header
    with pytest.raises(ServerError) as refused:
        Server(url=there.url).ask("POST", "/x")
    assert (refused.value.status, refused.value.retry_after) == (429, seconds)


def test_a_password_is_not_shown():
    assert "secret" not in repr(Server(url="http://there", user="u", password="secret"))


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:1 does not answer: .*refused"):
        Server(url="http://127.0.0.1:1").ask("GET", "/")


def test_what_an_address_of_a_server_looks_like():
    assert [is_url(text) for text in ("http://a", "https://a:1", "file:///etc/passwd", "a:1", "")] == [
        True, True, False, False, False
    ]  # fmt: skip
