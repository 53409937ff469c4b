"""L7 policies change while their process runs: by real requests, and under WebSockets of another load balancer."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Backend, Server
from fairlead.dataplane.haproxy_policies import TABLE_KEY, map_path, table
from fairlead.dataplane.haproxy_text import CONFIGURATION
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy import driver, network, supervisor
from fairlead.drivers.haproxy.backoff import BURST, INTERVAL
from fairlead.drivers.haproxy.process import CONTROL, Program, check
from fairlead.drivers.haproxy.runtime import CommandFailed, send_command, send_commands
from fairlead.drivers.haproxy.state import read_state
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.model.documents.l7 import (
    L7Action,
    L7Comparison,
    L7Policy,
    L7Rule,
    L7RuleType,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.model.documents.loadbalancer import Pool, PoolProtocol, Timeouts
from fairlead.model.documents.owner import Kind, Owner
from harness import machines as requests
from harness.haproxy_site import NET, NETWORK, HaproxySite, opened_site
from harness.language import COMMON
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE

pytestmark = [needs_haproxy]
OTHER = Owner(Kind.LOAD_BALANCER, "other")
PATH, HOST = L7RuleType.PATH, L7RuleType.HOST_NAME
EQUAL, STARTS = L7Comparison.EQUAL_TO, L7Comparison.STARTS_WITH


def rule(name: str, kind: L7RuleType, value: str, how: L7Comparison = EQUAL, **known: Any) -> L7Rule:
    return L7Rule(id=name, type=kind, compare_type=how, value=value, **{**known, **COMMON})


def policy(name: str, action: L7Action, *rules: L7Rule, **known: Any) -> L7Policy:
    return L7Policy(id=name, action=action, rules=rules, **known, **COMMON)


def rows(port: int, pools: Sequence[Pool], *policies: L7Policy) -> Rows:
    """The first pool is the default one."""
    return HAPROXY.compile(view([listener("one", port, pools[0], l7policies=policies)], pools), WEB)


def located(port: int, path: str, **headers: str) -> tuple[int, str | None]:
    status, _, answer = requests.request(port, path, **headers)
    return status, answer.getheader("Location")


async def meets(port: int, path: str, **headers: str) -> tuple[int, str | None]:
    return await asyncio.to_thread(located, port, path, **headers)


async def body(port: int, path: str) -> str:
    return (await asyncio.to_thread(requests.request, port, path))[1]


def folder_of(site: HaproxySite) -> Path:
    [folder] = site.folder.glob("*/")
    return folder


async def agree(site: HaproxySite) -> None:
    """The process has what a new one would read: the map of each frontend, and each pattern."""
    folder = folder_of(site)
    kept = read_state(folder)
    assert kept.slots
    for frontend, slots in kept.slots.items():
        path = map_path(frontend)
        told = [
            line.partition(" ")[2] for line in (await send_command(folder / CONTROL, f"show map {path}")).splitlines()
        ]
        assert sorted(told) == sorted((folder / path).read_text().splitlines())
        assert f"{TABLE_KEY} {table(slots)}" in told
    text = (folder / CONFIGURATION).read_text()
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["acl"] and "-u" in words:
            [said] = (await send_command(folder / CONTROL, f"show acl #{words[words.index('-u') + 1]}")).splitlines()
            assert said.partition(" ")[2] == line.partition(" -- ")[2].replace("'\\''", "\0").replace("'", "").replace(
                "\0", "'"
            )
    await check(folder, Program(path=PROGRAM, user=""), CONFIGURATION)


def actions() -> Iterator[tuple[L7Action, tuple[int, str | None]]]:
    """Each with what a request for /a meets."""
    yield Reject(), (403, None)
    yield RedirectToUrl(url="http://x.example/%ci;a#b|c{d}"), (302, "http://x.example/%ci;a#b|c{d}")
    for code in (301, 302, 303, 307, 308):
        yield RedirectToUrl(url=f"http://x.example/{code}", code=code), (code, f"http://x.example/{code}")
    yield RedirectPrefix(prefix="http://y.example/p", code=307), (307, "http://y.example/p/a")


async def test_policy_changes_apply_in_the_running_process(site: HaproxySite, machines: tuple[int, int]) -> None:
    port = free_port()
    web, special = pool("web", member("m1", machines[0])), pool("special", member("m2", machines[1]))
    off = policy("off", RedirectToPool(pool_id="special"), rule("r", PATH, "/off"), admin_state_up=False)
    first = policy("p", Reject(), rule("r", PATH, "/first"))

    async def put(*policies: L7Policy) -> None:
        site.allow_commands()
        await site.apply_until_done(WEB, rows(port, [web, special], *policies, off))
        await agree(site)

    await site.apply_until_done(NET, NETWORK)
    await put(first)
    site.hold_replacements()
    assert (await meets(port, "/first"))[0] == 403
    for action, met in actions():
        await put(policy("p", action, rule("r", PATH, "/a")))
        assert await meets(port, "/a") == met
        assert (await meets(port, "/first"))[0] == 200
    await put(policy("p", RedirectToPool(pool_id="special"), rule("r", PATH, "/a")))
    assert [await body(port, path) for path in ("/a", "/b")] == ["m2", "m1"]
    one = policy("p", RedirectToUrl(url="http://1/"), rule("r", PATH, "/a", STARTS))
    two = policy("q", RedirectToUrl(url="http://2/"), rule("s", HOST, "a.example"))
    for order in ((one, two), (two, one)):
        await put(*order)
        assert (await meets(port, "/ab", Host="a.example"))[1] == f"http://{'12' if order[0] is one else '21'}"[
            :8
        ] + "/"
    await put(replace(one, admin_state_up=False), two)
    assert (await meets(port, "/ab", Host="a.example"))[1] == "http://2/"
    await put()
    assert (await meets(port, "/ab", Host="a.example"))[0] == 200


WRONG = [
    "/a; shutdown sessions server x/y; #",
    "/a\\; disable frontend one",
    "/a <<",
    "<<",
    "/a;disable frontend one",
    "-i",
    "-f /etc/passwd",
    "@1 #5 x",
    "#1",
    "'\"`$(id)${HOME}%[src]%%\\\\n",
    "/éü",
    "*!|&(){}[]~^?",
]


async def test_policy_values_are_never_interpreted_as_commands(site: HaproxySite, machines: tuple[int, int]) -> None:
    """What a tenant types is looked for as it is, and the process is told nothing else."""
    port, web = free_port(), pool("web", member("m1", machines[0]))
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(
        WEB, rows(port, [web], policy("p", Reject(), rule("r", L7RuleType.COOKIE, "x", key="c")))
    )
    site.hold_replacements()
    before = site.pid
    for text in WRONG:
        action = RedirectToUrl(url="http://x/a;b<<")
        site.allow_commands()
        await site.apply_until_done(
            WEB, rows(port, [web], policy("p", action, rule("r", L7RuleType.COOKIE, text, key="c")))
        )
        await agree(site)
        assert site.pid == before
    for text in ("<<", "-i", "#1", "*!|&(){}[]~^?"):
        await site.apply_until_done(
            WEB, rows(port, [web], policy("p", Reject(), rule("r", L7RuleType.COOKIE, text, key="c")))
        )
        assert [(await meets(port, "/", Cookie=f"c={its}"))[0] for its in (text, "x")] == [403, 200]


async def test_failed_command_replaces_the_process_with_the_written_configuration(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, web = free_port(), pool("web", member("m1", machines[0]))
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, "/a"))))
    before = site.pid
    told = driver.send_commands

    async def tell_half(socket: Path, commands: Any) -> None:
        every = list(commands)
        await told(socket, every[: len(every) // 2])
        raise CommandFailed("it does not want to")

    site.allow_replacement()
    monkeypatch.setattr(driver, "send_commands", tell_half)
    await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, "/b"))))
    monkeypatch.undo()
    assert site.pid != before
    assert [(await meets(port, path))[0] for path in ("/a", "/b")] == [200, 403]
    await agree(site)


async def test_restarted_agent_keeps_the_policy_slots(site: HaproxySite, machines: tuple[int, int]) -> None:
    port, web = free_port(), pool("web", member("m1", machines[0]))
    await site.apply_until_done(NET, NETWORK)
    for path in ("/a", "/b", "/c"):
        await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, path))))
    before = site.pid
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    site.hold_replacements()
    await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, "/d"))))
    assert [(await meets(port, path))[0] for path in ("/c", "/d")] == [200, 403]
    assert site.pid == before
    await agree(site)


async def test_pool_without_a_policy_is_removed_without_a_new_process(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    port = free_port()
    pools = pool("web", member("m1", machines[0])), pool("special", member("m2", machines[1]))
    leading = policy("p", RedirectToPool(pool_id="special"), rule("r", PATH, "/a"))
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, pools, leading))
    assert "m2" == await body(port, "/a")
    site.hold_replacements()
    before = site.pid
    await site.apply_until_done(WEB, rows(port, pools))
    assert ("m1", before) == (await body(port, "/a"), site.pid)
    assert 1 == len([row for row in (await site.driver.read(WEB)).values() if isinstance(row, Backend)])
    site.allow_replacement()
    await site.apply_until_done(WEB, rows(port, pools, leading))
    assert "m2" == await body(port, "/a")


async def test_policy_to_a_proxy_protocol_pool_is_enabled_without_a_new_process(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    port = free_port()
    headed = pool("headed", member("m2", machines[1]), protocol=PoolProtocol.PROXY)
    pools = pool("web", member("m1", machines[0])), headed
    leading = policy("p", RedirectToPool(pool_id="headed"), rule("r", PATH, "/a"))
    other = policy("q", Reject(), rule("s", PATH, "/b"))
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, pools, replace(leading, admin_state_up=False), other))
    site.hold_replacements()
    before = site.pid
    for is_enabled in (True, False, True):
        await site.apply_until_done(WEB, rows(port, pools, replace(leading, admin_state_up=is_enabled), other))
        assert (await body(port, "/a") == "m1") is not is_enabled, "the machine knows no such header"
    assert (await meets(port, "/b"))[0] == 403
    assert site.pid == before


class Checks:
    """Texts of the configurations that HAProxy has checked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.texts = list[str]()
        check_beside = supervisor.check_draft

        async def note(folder: Path, texts: Mapping[str, str], *known: Any) -> None:
            self.texts.append(texts[CONFIGURATION])
            await check_beside(folder, texts, *known)

        patch.setattr(supervisor, "check_draft", note)


async def test_policy_change_checks_only_the_changed_configuration(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, web = free_port(), pool("web", *[member(f"m{number}", machines[0]) for number in range(1, 9)])
    await site.apply_until_done(NET, NETWORK)
    chat = pool("chat", member("m1", machines[0]))
    await site.apply_until_done(OTHER, HAPROXY.compile(view([listener("chat", free_port(), chat)], [chat]), WEB))
    site.allow_replacement()
    await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, "/a"))))
    site.hold_replacements()
    checks, threads, commands = Checks(monkeypatch), list[threading.Thread](), network.commands

    def note(*known: Any) -> Any:
        threads.append(threading.current_thread())
        return commands(*known)

    monkeypatch.setattr(network, "commands", note)
    changed = rows(port, [web], policy("p", Reject(), rule("r", PATH, "/b")))
    await site.apply_until_done(WEB, changed)
    [text], [thread] = checks.texts, threads
    assert thread is not threading.current_thread(), "the event loop goes on"
    assert "/b" in text
    assert "frontend one" in text
    assert "backend web:" in text
    assert "chat" not in text
    assert f":{machines[0]}" not in text, "no server"
    assert "frontend chat" in (folder_of(site) / CONFIGURATION).read_text()
    assert [(await meets(port, path))[0] for path in ("/a", "/b")] == [200, 403]
    await agree(site)
    site.allow_replacement()
    await site.apply_until_done(OTHER, {})


async def test_frequent_policy_changes_cause_few_checks_and_the_last_one_serves(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty changes a second, by the clock of the pace. Servers change all the time."""
    port, now, waits, weights = free_port(), 0.0, list[float](), set[int]()
    for module in (driver, supervisor):
        monkeypatch.setattr(module, "_now", lambda: now)

    def changed(number: int) -> Rows:
        web = pool("web", member("m1", machines[0], weight=1 + number))
        return rows(port, [web], policy("p", Reject(), rule("r", PATH, f"/{number}")))

    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, changed(99))
    site.hold_replacements()
    before, checks = site.pid, Checks(monkeypatch)
    for number in range(60):
        now += 0.05
        waits.append(await site.apply_once(WEB, changed(number)))
        found = await site.driver.read(WEB)
        weights |= {row.weight for row in found.values() if isinstance(row, Server)}
    assert len(checks.texts) == BURST + 5, "ten at once, then one each half second"
    assert weights == {*range(1, 61)}
    assert 0 < waits[-1] <= INTERVAL
    now += waits[-1]
    assert await site.apply_once(WEB, changed(59)) == 0
    assert [(await meets(port, path))[0] for path in ("/58", "/59")] == [200, 403]
    assert site.pid == before
    await agree(site)


async def test_too_many_policy_values_are_an_error_of_the_changed_load_balancer(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the one that has had its own before. That one may change, with a new process and without."""
    monkeypatch.setattr(network, "MAX_PROCESS_PATTERNS", 3)
    port, web = free_port(), pool("web", member("m1", machines[0]))
    chat = pool("chat", member("m1", machines[0]))
    one, two = (policy(name, Reject(), rule(name, PATH, f"/{name}")) for name in ("one", "two"))

    async def put_other(*policies: L7Policy) -> None:
        front = listener("chat", free_port(), chat, l7policies=policies)
        site.allow_replacement()
        await site.apply_until_done(OTHER, HAPROXY.compile(view([front], [chat]), WEB))

    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, [web], one, two))
    await put_other(one)
    with pytest.raises(DriverError, match=r"load balancer other: .* 4 values .*: delete or disable"):
        await put_other(one, two)
    assert len((await site.driver.read(OTHER)).keys()) == 3
    await site.apply_until_done(WEB, rows(port, [web], two))
    assert [(await meets(port, path))[0] for path in ("/one", "/two")] == [200, 403]
    await put_other(one, two)
    with pytest.raises(DriverError, match="load balancer web: "):
        await site.apply_until_done(WEB, rows(port, [web], one, two))
    assert [(await meets(port, path))[0] for path in ("/one", "/two")] == [200, 403]
    await agree(site)
    await put_other()
    site.allow_replacement()
    await site.apply_until_done(OTHER, {})


async def test_commands_of_a_change_are_sent_over_one_connection(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = list[None](), asyncio.open_unix_connection

    async def count(*known: Any, **more: Any) -> Any:
        opened.append(None)
        return await connect(*known, **more)

    port, web = free_port(), pool("web", member("m1", machines[0]))
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, [web], policy("p", Reject(), rule("r", PATH, "/a"))))
    control = folder_of(site) / CONTROL
    [frontend] = read_state(folder_of(site)).slots
    path = map_path(frontend)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "open_unix_connection", count)
        await send_commands(control, [(f"set map {path} 0 pool:{number}", "", False) for number in range(200)])
        assert len(opened) == 1
        with pytest.raises(CommandFailed, match="nowhere"):
            await send_commands(
                control,
                [
                    ("clear acl #7777777", "", True),
                    (f"set map {path} 0 deny", "", False),
                    ("set map nowhere 0 x", "", False),
                    (f"set map {path} 0 pool:never", "", False),
                ],
            )
        assert len(opened) == 2
        await send_commands(control, [])
        assert len(opened) == 2
    assert " 0 deny\n" in await send_command(control, f"show map {path}")
    with pytest.raises(Unavailable):
        await send_commands(control.with_name("nobody"), [("show info", "", False)])


@asynccontextmanager
async def speaker() -> AsyncIterator[int]:
    """A member that changes to another protocol (RFC 9110, 7.8), as WebSockets do, and repeats what it is sent."""

    spoken = list[asyncio.StreamWriter]()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spoken.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n")
        writer.write(b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")  # of RFC 6455's example key
        with suppress(ConnectionError):
            while text := await reader.read(100):
                writer.write(text)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in spoken:
            each.close()


class KeptConversation:
    """A connection that stays."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, port: int) -> "KeptConversation":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        writer.write(f"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n{key}\r\n".encode())
        if b" 101 " not in await reader.readuntil(b"\r\n\r\n"):
            writer.close()
            raise ConnectionRefusedError
        return cls(reader, writer)

    async def goes_on(self) -> bool:
        self._writer.write(b"ping")
        async with asyncio.timeout(DEADLINE):
            return await self._reader.read(4) == b"ping"

    def end(self) -> None:
        self._writer.close()


DAY = 86_400_000
"""Milliseconds: a WebSocket that says nothing is not cut for that."""
MAX_POLICIES = 4
"""Policies of the listener that changes."""
SHAPES = tuple((kind, how) for kind in (PATH, HOST) for how in (EQUAL, STARTS))


def full() -> tuple[L7Policy, ...]:
    """As many of each shape as `some_policies` ever has: after it a process has slots for any two of these at once."""
    return tuple(
        policy(f"{name}{kind}{how}", Reject(), rule("r", kind, f"/full{name}", how))
        for kind, how in SHAPES
        for name in range(MAX_POLICIES)
    )


def some_policies(chance: random.Random, number: int) -> tuple[L7Policy, ...]:
    """Of several types, actions and orders. A request for the number finds the first one."""
    found = [policy("first", RedirectToUrl(url=f"http://{number}/", code=301), rule("f", PATH, f"/{number}"))]
    for place in range(chance.randrange(MAX_POLICIES)):
        kind, how = chance.choice(SHAPES)
        action = chance.choice((RedirectToUrl(url=f"http://x/{number}"), RedirectToPool(pool_id="special")))
        its = rule(f"r{place}", kind, f"/x{number % 7}", how)
        found.append(policy(f"p{place}", action, its, admin_state_up=bool(number % 5)))
    chance.shuffle(found)
    return tuple(found)


@pytest.mark.parametrize("changes", [30, pytest.param(1_000, marks=pytest.mark.extended)])
async def test_policy_changes_cut_no_connection_of_another_load_balancer(
    machines: tuple[int, int], changes: int
) -> None:
    """A request meets each change. A process that is replaced goes on for ten seconds and no hour, so one that came for
    any of the changes would cut WebSockets; they are opened all along."""
    port, untouched, chance = free_port(), free_port(), random.Random(1)
    pools = pool("web", member("m1", machines[0])), pool("special", member("m2", machines[1]))
    off = policy("off", RedirectToPool(pool_id="special"), admin_state_up=False)  # so the pool has a backend
    async with speaker() as speaking, opened_site(outlives=10) as site:
        chat = pool("chat", member("m1", speaking))
        await site.apply_until_done(NET, NETWORK)
        front = listener("chat", untouched, chat, timeouts=Timeouts(client_data=DAY, member_data=DAY))
        await site.apply_until_done(OTHER, HAPROXY.compile(view([front], [chat]), WEB))
        await site.apply_until_done(WEB, rows(port, pools, *full(), off))
        talks, process = [await KeptConversation.begin(untouched)], site.pid
        for number in range(changes):
            site.allow_commands()
            await site.apply_until_done(WEB, rows(port, pools, *some_policies(chance, number), off))
            assert await meets(port, f"/{number}") == (301, f"http://{number}/")
            if number % (changes // 10) == 0:
                talks.append(await KeptConversation.begin(untouched))
        assert site.pid == process
        assert all([await each.goes_on() for each in talks])
        for each in talks:
            each.end()
        await site.apply_until_done(OTHER, {})
