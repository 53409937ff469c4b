"""Attacks by strangers and tenants, as observed on real servers; each is a function with a bounded count.

`python -m harness.siege.attackers URL SHARE NAMES` runs all NAMES (comma-separated) concurrently in its own process
until the end of standard input; then it prints the outcomes as JSON. SHARE reduces the counts. Each attacker has its
own address, so the server can distinguish them.
"""

import asyncio
import base64
import contextlib
import json
import os
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from harness.pools import upper_half
from harness.siege.wire import ANSWER_TIMEOUT, CLOSED, AttackTarget, basic

LXD = "SIEGE_LXD"
"""Environment variable with the address of LXD's listener."""
NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackLimits:
    """Limits of an attack: its end, and the share of the observed counts."""

    ended: threading.Event
    share: float

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    def scaled_count(self, all_of_it: int) -> int:
        return max(1, int(all_of_it * self.share))


Attacker = Callable[[AttackTarget, AttackLimits], Awaitable[None]]


async def _repeat(order: AttackLimits, times: int, at_once: int, act: Callable[[int], Awaitable[object]]) -> None:
    """Call `act` `times` times, `at_once` of them concurrently, until the attack ends."""
    numbers = iter(range(times))

    async def work() -> None:
        for number in numbers:
            if not order.is_running:
                return
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await act(number)

    await asyncio.gather(*(work() for _ in range(at_once)))


# without a password


async def silent_connections(target: AttackTarget, order: AttackLimits) -> None:
    """1,100 connections, more than a process may have files, that send nothing or one byte of a head per second."""

    async def hold(number: int) -> None:
        while order.is_running:
            with contextlib.suppress(OSError, TimeoutError):
                async with target.connect() as (reader, writer):
                    target.outcomes["connected"] += 1
                    writer.write(b"GET / HTTP/1.1\r\nX: " if number % 2 else b"")
                    while order.is_running and not reader.at_eof():
                        writer.write(b"a" if number % 2 else b"")
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(2**12), 1)
                    target.outcomes[CLOSED] += reader.at_eof()
            await asyncio.sleep(1)

    await asyncio.gather(*(hold(number) for number in range(order.scaled_count(1100))))


async def slow_bodies(target: AttackTarget, order: AttackLimits) -> None:
    """Heads that announce a body, followed by one byte of it per second."""

    async def send(number: int) -> None:
        async with target.connect() as (reader, writer):
            writer.write(target.head("POST", f"{NETWORK}/networks", Content_Length="1000000"))
            while order.is_running and not reader.at_eof():
                writer.write(b" ")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(2**12), 1)
            target.outcomes[CLOSED] += reader.at_eof()

    await _repeat(order, order.scaled_count(400), order.scaled_count(200), send)


async def _send_until_closed(target: AttackTarget, order: AttackLimits, head: bytes, drop: bytes, most: int) -> None:
    """Send `head`, then `drop` until the server closes the connection; count the accepted MiB."""
    sent = 0
    with contextlib.suppress(OSError, TimeoutError):
        async with target.connect() as (_, writer):
            writer.write(head)
            while sent < most and order.is_running:
                writer.write(drop)
                await asyncio.wait_for(writer.drain(), 5)
                sent += len(drop)
                await asyncio.sleep(0)
    target.outcomes["MiB taken"] += sent // 2**20
    target.outcomes["poured"] += 1


async def trailers(target: AttackTarget, order: AttackLimits) -> None:
    """Trailer fields after the last chunk, without an end."""
    head = target.head("POST", f"{NETWORK}/networks", Transfer_Encoding="chunked") + b"0\r\n"
    await _repeat(
        order,
        4,
        2,
        lambda _: _send_until_closed(target, order, head, b"x: y\r\n" * 2**13, order.scaled_count(512) * 2**20),
    )


async def chunk_extensions(target: AttackTarget, order: AttackLimits) -> None:
    head = target.head("POST", f"{NETWORK}/networks", Transfer_Encoding="chunked") + b"1;"
    await _repeat(
        order, 2, 1, lambda _: _send_until_closed(target, order, head, b"a=b;" * 2**14, order.scaled_count(256) * 2**20)
    )


async def endless_heads(target: AttackTarget, order: AttackLimits) -> None:
    """Header fields without an end, and a path without an end."""
    most = order.scaled_count(256) * 2**20
    for head, drop in ((b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 2**13), (b"GET /", b"a" * 2**16)):
        for _ in range(2):
            await _send_until_closed(target, order, head, drop, most)


async def pipelines(target: AttackTarget, order: AttackLimits) -> None:
    """Pipelined requests whose responses are not read."""
    request = target.head("GET", "/healthz")
    await _repeat(
        order, 4, 2, lambda _: _send_until_closed(target, order, b"", request * 2**10, order.scaled_count(64) * 2**20)
    )


async def paths(target: AttackTarget, order: AttackLimits) -> None:
    """20,000 nonexistent paths, with names that would inject lines into the log."""

    async def ask(number: int) -> None:
        await target.call("GET", f"/nothing{number}/x%0A2026-01-01%20INFO%20all%20is%20well%1b[2J")

    await _repeat(order, order.scaled_count(20_000), 8, ask)


async def methods(target: AttackTarget, order: AttackLimits) -> None:
    """Nonexistent paths with every method that the parser accepts."""
    known = ["PROPFIND", "MKCOL", "M-SEARCH", "PURGE", "LINK", "SUBSCRIBE", "TRACE", "REPORT", "SOURCE", "UNLOCK"]
    await _repeat(
        order, order.scaled_count(1000), 2, lambda number: target.call(known[number % len(known)], f"/{number}/x")
    )


async def wrong_passwords(target: AttackTarget, order: AttackLimits) -> None:
    """2,000 wrong passwords, without waiting for the responses."""

    async def knock(number: int) -> None:
        thief = AttackTarget(url=target.url, source=target.source, authorization=basic("ann", f"wrong {number}"))
        async with target.connect() as (_, writer):
            writer.write(thief.head("GET", f"{NETWORK}/networks"))
            await writer.drain()
        target.outcomes["knocked"] += 1

    await _repeat(order, order.scaled_count(2000), 50, knock)


async def sequential_password_guesses(target: AttackTarget, order: AttackLimits) -> None:
    """Wrong passwords of many names, each waiting for its response."""

    async def knock(number: int) -> None:
        name = "ann" if number % 2 else f"nobody{number}"
        thief = AttackTarget(
            url=target.url,
            source=target.source,
            authorization=basic(name, f"wrong too {number}"),
            outcomes=target.outcomes,
        )
        await thief.call("GET", f"{NETWORK}/networks")

    await _repeat(order, order.scaled_count(2000), 50, knock)


async def lxd_attacks(target: AttackTarget, order: AttackLimits) -> None:
    """Attacks on LXD's listener: endless handshakes, guessed tokens, forbidden paths, and websockets."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    place = os.environ[LXD]
    known = AttackTarget(url=f"https://{place}", source=target.source, tls=tls, outcomes=target.outcomes)
    guess = {"trust_token": base64.b64encode(b'{"secret":"guess"}').decode()}
    websocket = {"Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": "MDEyMzQ1Njc4OWFiY2RlZg=="}

    async def linger() -> None:
        async with AttackTarget(url=f"http://{place}", source=target.source).connect() as (reader, writer):
            writer.write(b"\x16\x03\x01\x01\x00\x01")
            while order.is_running and not reader.at_eof():
                writer.write(b"\0")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(2**12), 1)
            target.outcomes[CLOSED] += reader.at_eof()

    async def knock(number: int) -> None:
        match number % 4:
            case 0:
                await linger()
            case 1:
                await known.call("POST", "/1.0/certificates", guess)
            case 2:
                await known.call("GET", f"/1.0/projects?filter=name+eq+{'.*a' * 80}")
            case 3:
                async with asyncio.timeout(ANSWER_TIMEOUT), known.connect() as (reader, writer):
                    writer.write(known.head("GET", "/1.0/events", Connection="upgrade", **websocket))
                    target.outcomes[f"websocket {(await reader.read(12))[9:].decode()}"] += 1

    await _repeat(order, order.scaled_count(8000), 100, knock)


# with a password: each user has a project of the same name


async def parallel_writes(target: AttackTarget, order: AttackLimits) -> None:
    """100 concurrent writes of one tenant, repeatedly."""

    async def write(number: int) -> None:
        await target.call("POST", f"{BALANCER}/loadbalancers", {"loadbalancer": {"name": f"l{number}", **vip}})

    network = (await target.call("POST", f"{NETWORK}/networks", {"network": {"name": "w"}})).json()["network"]["id"]
    subnet = {"network_id": network, "cidr": "10.7.0.0/16", "ip_version": 4}
    await target.call("POST", f"{NETWORK}/subnets", {"subnet": subnet})
    vip = {"vip_network_id": network}
    await _repeat(order, order.scaled_count(4000), 100, write)


async def large_pools(target: AttackTarget, order: AttackLimits) -> None:
    """208 writes of a pool with 1,000 members."""
    network = (await target.call("POST", f"{NETWORK}/networks", {"network": {"name": "p"}})).json()["network"]["id"]
    pools = upper_half("10.8.0.0/16")
    subnet = {"network_id": network, "cidr": "10.8.0.0/16", "ip_version": 4, "allocation_pools": pools}
    await target.call("POST", f"{NETWORK}/subnets", {"subnet": subnet})
    pool = {"name": "large", "protocol": "TCP", "lb_algorithm": "SOURCE_IP"}
    body = {"name": "large", "vip_network_id": network, "pools": [pool]}
    made = (await target.call("POST", f"{BALANCER}/loadbalancers", {"loadbalancer": body})).json()["loadbalancer"]
    path = f"{BALANCER}/pools/{made['pools'][0]['id']}/members"

    async def write(number: int) -> None:
        members = [
            {"address": f"10.8.{index // 250}.{index % 250 + 2}", "protocol_port": 80, "weight": int(index < 200),
             "name": f"{number} {'x' * 200}"}
            for index in range(1000)
        ]  # fmt: skip
        await target.call("PUT", path, {"members": members})

    await _repeat(order, order.scaled_count(208), 4, write)


async def port_allocations(target: AttackTarget, order: AttackLimits) -> None:
    """999 ports of 64 addresses each, one of them invalid: the server checks all of it, and creates nothing."""
    network = (await target.call("POST", f"{NETWORK}/networks", {"network": {"name": "a"}})).json()["network"]["id"]
    subnet = {"network_id": network, "cidr": "10.16.0.0/12", "ip_version": 4}
    answer = await target.call("POST", f"{NETWORK}/subnets", {"subnet": subnet})
    fixed = [{"subnet_id": answer.json()["subnet"]["id"]}] * 64
    ports = [{"network_id": network, "fixed_ips": fixed}] * 998
    wrong = {"network_id": network, "fixed_ips": [{"ip_address": "192.0.2.1"}]}
    body = json.dumps({"ports": [*ports, wrong]}).encode()
    await _repeat(order, order.scaled_count(5), 1, lambda _: target.call("POST", f"{NETWORK}/ports", body))


async def deep_trees(target: AttackTarget, order: AttackLimits) -> None:
    """A load balancer with 60 pools of 1,000 members."""
    network = (await target.call("POST", f"{NETWORK}/networks", {"network": {"name": "t"}})).json()["network"]["id"]
    await target.call("POST", f"{NETWORK}/subnets", {"subnet": {"network_id": network, "cidr": "10.9.0.0/24"}})
    members = [{"address": f"10.9.{n // 250}.{n % 250 + 2}", "protocol_port": 80} for n in range(1000)]
    pools = [{"protocol": "TCP", "lb_algorithm": "SOURCE_IP", "members": members} for _ in range(60)]
    body = json.dumps({"loadbalancer": {"vip_network_id": network, "pools": pools}}).encode()
    await _repeat(order, order.scaled_count(20), 1, lambda _: target.call("POST", f"{BALANCER}/loadbalancers", body))


async def many_networks(target: AttackTarget, order: AttackLimits) -> None:
    """2,100 networks, each of which OVN has to process."""

    async def make(number: int) -> None:
        await target.call("POST", f"{NETWORK}/networks", {"networks": [{"name": f"n{number}"}] * 20})

    await _repeat(order, order.scaled_count(105), 1, make)


STRANGERS: tuple[Attacker, ...] = (
    silent_connections,
    slow_bodies,
    trailers,
    chunk_extensions,
    endless_heads,
    pipelines,
    paths,
    methods,
    wrong_passwords,
    sequential_password_guesses,
    lxd_attacks,
)
TENANTS: tuple[Attacker, ...] = (
    parallel_writes,
    large_pools,
    port_allocations,
    deep_trees,
    many_networks,
)
ATTACKERS = {attacker.__name__: attacker for attacker in (*STRANGERS, *TENANTS)}


async def attack(url: str, order: AttackLimits, names: list[str]) -> dict[str, dict[str, int]]:
    targets = {
        name: AttackTarget(
            url=url,
            source=f"127.0.0.{10 + number}",
            authorization=basic(name, f"password of {name}") if ATTACKERS[name] in TENANTS else "",
        )
        for number, name in enumerate(names)
    }

    async def run(name: str) -> None:
        try:
            await ATTACKERS[name](targets[name], order)
        except (KeyError, ValueError, OSError, TimeoutError) as error:  # a rejected preparation is an outcome too
            targets[name].outcomes[f"gave up: {type(error).__name__}"] += 1

    await asyncio.gather(*map(run, names))
    return {name: dict(target.outcomes) for name, target in targets.items()}


def main() -> None:
    url, share, names = sys.argv[1:]
    order = AttackLimits(ended=threading.Event(), share=float(share))
    threading.Thread(target=_end_with_input, args=(order.ended,), daemon=True).start()
    print(json.dumps(asyncio.run(attack(url, order, names.split(",")))))


def _end_with_input(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main()
