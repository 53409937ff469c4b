"""The needed and unneeded ports of proxies are read from all servers, because each has the nodes that follow it."""

from typing import Any

import pytest

from fairlead.http.server_client import ApiClient, NotReached, ServerError
from fairlead.octavia_plugin.api_client import RATE_LIMIT_TIMEOUT, PluginApi


def place(project: str, come: list[str], go: list[str]) -> dict[str, Any]:
    return {"project_id": project, "come": [{"host": each, "device_id": each} for each in come], "go": go}


def test_proxy_ports_reported_by_all_servers_are_merged(monkeypatch: pytest.MonkeyPatch):
    said: dict[str, list[dict[str, Any]] | None] = {
        "one": [place("a", ["n1"], [])],
        "two": [place("a", ["n2"], ["x"]), place("b", [], [])],
        "three": None,
    }

    def ask(server: ApiClient, method: str, path: str, body: object = None) -> object:
        assert (method, path, body) == ("GET", "/plugin/proxied-networks/net", None)
        if (places := said[server.url]) is None:
            raise NotReached("away", None)
        return {"network": {"places": places}}

    monkeypatch.setattr(ApiClient, "request", ask)
    door = PluginApi(tuple(ApiClient(url=each, timeout=1.0) for each in said))
    assert door.proxy_ports("net") == [place("a", ["n1", "n2"], ["x"]), place("b", [], [])]
    said.update(one=None, two=None)
    with pytest.raises(NotReached):
        door.proxy_ports("net")


@pytest.mark.parametrize(
    ("paced", "waits", "works"),
    [
        ([1], [1], True),
        ([2, 3], [2, 3], True),
        ([4, 4, 4], [4, 4], False),
        ([RATE_LIMIT_TIMEOUT + 1], [], False),
        ([0], [], False),
    ],
    ids=str,
)
def test_rate_limited_request_is_retried_after_the_announced_delay(
    monkeypatch: pytest.MonkeyPatch, paced: list[int], waits: list[int], works: bool
):
    waited = list[float]()

    def ask(server: ApiClient, method: str, path: str, body: object = None) -> object:
        if paced:
            raise ServerError("too many requests", 429, paced.pop(0))
        return {"network": {"is_probed": False, "cidrs": []}}

    monkeypatch.setattr(ApiClient, "request", ask)
    door = PluginApi((ApiClient(url="one"),), waited.append)
    if works:
        assert door.probe_subnets("net") is None
    else:
        with pytest.raises(ServerError):
            door.probe_subnets("net")
    assert waited == waits


@pytest.mark.parametrize(
    ("paced", "waits", "works"),
    [
        ({"two": [2]}, [2], True),
        ({"one": [3], "three": [1, 4]}, [3, 1, 4], True),
        ({"one": [6], "three": [5]}, [6], False),
        ({"two": [0]}, [], False),
    ],
    ids=str,
)
def test_only_the_rate_limiting_server_is_read_again(
    monkeypatch: pytest.MonkeyPatch, paced: dict[str, list[int]], waits: list[int], works: bool
):
    """The time for it is that of all servers together."""
    answered = list[str]()

    def ask(server: ApiClient, method: str, path: str, body: object = None) -> object:
        if paced.get(server.url):
            raise ServerError("too many requests", 429, paced[server.url].pop(0))
        answered.append(server.url)
        return {"network": {"places": [place("a", [server.url], [])]}}

    monkeypatch.setattr(ApiClient, "request", ask)
    waited = list[float]()
    door = PluginApi(tuple(ApiClient(url=each) for each in ("one", "two", "three")), waited.append)
    if works:
        assert door.proxy_ports("net") == [place("a", ["one", "two", "three"], [])]
        assert answered == ["one", "two", "three"]
    else:
        with pytest.raises(ServerError):
            door.proxy_ports("net")
    assert waited == waits


def test_service_unavailable_error_is_not_retried(monkeypatch: pytest.MonkeyPatch):
    """Of a 503 nobody knows whether the change was stored."""

    def ask(server: ApiClient, method: str, path: str, body: object = None) -> object:
        raise ServerError("look again before you repeat the change", 503, 1)

    monkeypatch.setattr(ApiClient, "request", ask)
    waited = list[float]()
    with pytest.raises(ServerError):
        PluginApi((ApiClient(url="one"),), waited.append).put("/x", "x", {})
    assert waited == []
