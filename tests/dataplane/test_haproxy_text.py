"""Files of one HAProxy process: what has not changed is not rendered again."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.dataplane import haproxy_text
from fairlead.dataplane.haproxy import Backend, Frontend, HAProxyRow, Process, Server
from fairlead.dataplane.haproxy_policies import Condition, Policy
from fairlead.dataplane.haproxy_text import ProcessState, ProxySockets, assign_all_policy_slots, render, render_files

PROCESS = Process(network="net", port="p", mac="m", mtu=1400, addresses=(), connections=1, threads=1)
SOCKETS = ProxySockets(control="/c", peers="/p")
POLICY = Policy(action="deny", conditions=(Condition(samples=("path",), matching=("-m", "str"), value="/a"),))


def rows_of(number: int) -> list[HAProxyRow]:
    backend, name = f"b{number}", f"f{number}"
    return [
        Frontend(
            name=name, process="net", connections=9, lines=(("mode", "http"),), policies=(POLICY,), backends=(backend,)
        ),
        Backend(name=backend, process="net", lines=(("mode", "http"),)),
        Server(backend=backend, name="s", number=1, address=ip_address("10.0.0.11"), port=80, weight=1),
    ]


def test_only_parts_that_differ_are_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for number in range(20) for row in rows_of(number)]
    held = ProcessState(
        slots=assign_all_policy_slots({}, {row.name: row.desired_policies for row in rows if isinstance(row, Frontend)})
    )
    first, parts = render(PROCESS, rows, SOCKETS, held, {})
    lines = list[object]()
    read = haproxy_text.read_line
    monkeypatch.setattr(haproxy_text, "read_line", lambda text: lines.append(text) or read(text))
    assert render(PROCESS, [replace(row) for row in rows], SOCKETS, held, parts) == (first, parts)
    always = len(lines)
    changed = [replace(row, weight=7) if isinstance(row, Server) and row.backend == "b3" else row for row in rows]
    texts, after = render(PROCESS, changed, SOCKETS, held, parts)
    assert len(lines) - 2 * always == 4, "the backend, its mode, its server, and the end"
    assert texts == render_files(PROCESS, changed, SOCKETS, held) != first
    assert {name for name in after if after[name] is not parts[name]} == {"backend b3"}


def test_removed_parts_are_dropped_from_the_cache() -> None:
    parts = render(PROCESS, [*rows_of(1), *rows_of(2)], SOCKETS, ProcessState(), {})[1]
    assert {"frontend f2", "backend b2", "policies/f2"} <= parts.keys()
    texts, left = render(PROCESS, rows_of(1), SOCKETS, ProcessState(), parts)
    assert texts == render_files(PROCESS, rows_of(1), SOCKETS)
    assert left.keys() == {"frontend f1", "backend b1", "policies/f1"}
