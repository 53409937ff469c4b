"""Which ports of proxies have to come and go is asked of all servers: each speaks for the nodes that listen to it."""

from typing import Any

import pytest

from fairlead.client import NotReached, Server
from fairlead.octavia_plugin.door import Door


def place(project: str, come: list[str], go: list[str]) -> dict[str, Any]:
    return {"project_id": project, "come": [{"host": each, "device_id": each} for each in come], "go": go}


def test_what_servers_say_is_added_up(monkeypatch: pytest.MonkeyPatch):
    said: dict[str, list[dict[str, Any]] | None] = {
        "one": [place("a", ["n1"], [])],
        "two": [place("a", ["n2"], ["x"]), place("b", [], [])],
        "three": None,
    }

    def ask(server: Server, method: str, path: str, body: object = None) -> object:
        assert (method, path, body) == ("GET", "/plugin/proxied-networks/net", None)
        if (places := said[server.url]) is None:
            raise NotReached("away", None)
        return {"network": {"places": places}}

    monkeypatch.setattr(Server, "ask", ask)
    door = Door(tuple(Server(url=each, timeout=1.0) for each in said))
    assert door.proxied_on("net") == [place("a", ["n1", "n2"], ["x"]), place("b", [], [])]
    said.update(one=None, two=None)
    with pytest.raises(NotReached):
        door.proxied_on("net")
