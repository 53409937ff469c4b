"""Sections of one load balancer that HAProxy does not load keep no other from being served, with the real program."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import log2
from pathlib import Path
from random import Random

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Frontend
from fairlead.dataplane.haproxy_policies import patterns
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.network import Network
from fairlead.drivers.haproxy.process import CONFIGURATION, NotStarted
from fairlead.drivers.haproxy.secrets import is_in_memory
from fairlead.drivers.haproxy.state import read_kept
from fairlead.drivers.haproxy.validation import find_unsound
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.agent_counters import OWNERS_LEFT_OUT
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, Reject
from fairlead.model.documents.loadbalancer import ListenerProtocol, ListenerTls
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.secrets import Found, Wanted
from harness.certificates import Authority
from harness.haproxy_site import NET, NETWORK, Site, eventually_answers, get, opened
from harness.ports import free_port
from harness.proxied import COMMON, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import eventually, eventually_equal

pytestmark = [needs_haproxy]
OWNERS = [Owner(Kind.LOAD_BALANCER, f"lb{number}") for number in range(5)]
MEMORY = Path("/dev/shm")
ISSUED = Authority().issue("web.example", "127.0.0.1")
PRIVATE = L7Rule(id="r", type=L7RuleType.PATH, compare_type=L7Comparison.STARTS_WITH, value="/private", **COMMON)
BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


async def lend(wanted: Sequence[Wanted]) -> Sequence[Found]:
    return [Found(pem=ISSUED.whole) for _ in wanted]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    if not MEMORY.exists() or not is_in_memory(MEMORY):
        pytest.skip("there is no tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    async with opened(Site(folder, fetch=lend)) as made:
        yield made
        for owner in OWNERS:
            await made.put(owner, {})
    shutil.rmtree(folder)


def rows_of(owner: Owner, port: int, machine: int, weight: int = 1, policies: tuple[L7Policy, ...] = ()) -> Rows:
    """A load balancer with a listener of HTTP at this port, and one that ends TLS."""
    web = pool(f"{owner.id}-pool", member("m1", machine, weight=weight))
    plain = replace(listener(f"{owner.id}-web", port, web), l7policies=policies)
    tls = ListenerTls(container_ref=owner.id)
    protocol = ListenerProtocol.TERMINATED_HTTPS
    safe = listener(f"{owner.id}-safe", free_port(), web, protocol=protocol, tls=tls)
    return HAPROXY.compile(view([plain, safe], [web]), WEB)


def network(site: Site) -> Network:
    [found] = site.driver._networks.values()
    return found


def break_directive(site: Site, owner: Owner) -> None:
    """As one that a newer HAProxy does not know any more."""
    rows = network(site).kept.owners[owner]
    for key, row in rows.items():
        if isinstance(row, Frontend):
            rows[key] = replace(row, lines=(*row.lines, ("nonsense", "yes")))


def break_certificate(site: Site, owner: Owner) -> None:
    rows = network(site).kept.owners[owner].values()
    [secret] = [each.secret for each in rows if hasattr(each, "secret")]
    (network(site).kept.folder / secret.path).write_text(BROKEN)


BREAKS = [break_directive, break_certificate]
Break = Callable[[Site, Owner], None]


async def serve(site: Site, machine: int, owners: Sequence[Owner]) -> dict[Owner, int]:
    """The ports of these owners, which serve."""
    ports = {owner: free_port() for owner in owners}
    await site.put(NET, NETWORK)
    for owner, port in ports.items():
        site.allow_replacement()
        await site.put(owner, rows_of(owner, port, machine))
    for port in ports.values():
        await eventually_answers("m1", port)
    return ports


async def kill(site: Site) -> None:
    said = len(site.said)
    os.kill(site.pid, signal.SIGKILL)
    await eventually(lambda: None in site.said[said:] and site.said[-1] is not None)


async def others_serve_after_a_kill(site: Site, machine: int, dice: Random, how: Break) -> None:
    ports = await serve(site, machine, OWNERS[: dice.randint(2, len(OWNERS))])
    broken = dice.choice(list(ports))
    how(site, broken)
    await kill(site)
    for owner, port in ports.items():
        await eventually_answers("" if owner == broken else "m1", port)
    assert site.said[-1] is not None
    assert ports[broken] not in site.said[-1]
    assert {owner for owner in ports if site.driver.failure_of(owner)} == {broken}
    assert [broken] in site.failing
    for owner in OWNERS:
        site.allow_replacement()
        await site.put(owner, {})


@pytest.mark.parametrize("how", BREAKS)
async def test_others_serve_after_a_kill(site: Site, machines: tuple[int, int], how: Break) -> None:
    await others_serve_after_a_kill(site, machines[0], Random(1), how)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(200))
async def test_others_serve_after_a_kill_whatever_there_is(site: Site, machines: tuple[int, int], seed: int) -> None:
    dice = Random(seed)
    await others_serve_after_a_kill(site, machines[0], dice, dice.choice(BREAKS))


async def test_others_can_change_and_one_that_is_mended_is_served_again(site: Site, machines: tuple[int, int]) -> None:
    one, two, three = OWNERS[:3]
    ports = await serve(site, machines[0], [one, two])
    break_directive(site, one)
    site.allow_replacement()
    ports[three] = free_port()
    await site.put(three, rows_of(three, ports[three], machines[0]))
    await eventually_answers("m1", ports[three])
    await eventually_answers("m1", ports[two])
    assert await asyncio.to_thread(get, ports[one]) == ""
    assert "nonsense" in (site.driver.failure_of(one) or "")
    assert site.driver.counts()[OWNERS_LEFT_OUT] == 1
    site.allow_replacement()
    await site.put(two, rows_of(two, ports[two], machines[0], weight=7))
    assert site.driver.failure_of(two) is None
    site.allow_replacement()
    await site.put(one, rows_of(one, ports[one], machines[0]))
    await eventually_answers("m1", ports[one])
    assert (site.driver.failure_of(one), site.failing[-1]) == (None, [one])
    assert site.driver.counts()[OWNERS_LEFT_OUT] == 0


async def test_a_change_that_is_not_loaded_is_refused_and_leaves_what_was_served(
    site: Site, machines: tuple[int, int]
) -> None:
    """Also where another owner is left out."""
    one, two = OWNERS[:2]
    ports = await serve(site, machines[0], [one, two])
    break_directive(site, two)
    bad = {
        key: replace(row, lines=(*row.lines, ("balance", "nonsense"))) if isinstance(row, Frontend) else row
        for key, row in rows_of(one, ports[one], machines[0]).items()
    }
    site.allow_replacement()
    with pytest.raises(DriverError, match="balance"):
        await site.put(one, bad)
    await eventually_answers("m1", ports[one])
    await kill(site)
    await eventually_answers("m1", ports[one])
    assert "nonsense" in (site.driver.failure_of(two) or "")


async def test_policies_of_a_load_balancer_with_a_renewed_certificate_have_recorded_slots(
    site: Site, machines: tuple[int, int]
) -> None:
    """Commands and the next agent refer to slots, so each process has the slots that are recorded."""
    one, two, three = OWNERS[:3]
    rejecting = L7Policy(id="p", action=Reject(), rules=(PRIVATE,), **COMMON)
    await site.put(NET, NETWORK)
    for owner in (one, two):
        port = free_port()
        rows = rows_of(owner, port, machines[0], policies=(rejecting,))
        site.allow_replacement()
        await site.put(owner, rows)
        await eventually_answers("m1", port)
    frontends = set(network(site).kept.slots)
    assert len(frontends) == 2
    break_certificate(site, one)
    await kill(site)
    await eventually_equal(lambda: network(site).kept.settled, True)
    site.allow_replacement()
    await site.put(three, rows_of(three, free_port(), machines[0]))
    assert f"{one.id}-web" not in network(site).kept.slots
    await site.driver.renew()
    await eventually_equal(lambda: site.driver.failure_of(one), None)
    kept = network(site).kept
    assert kept.slots.keys() == frontends
    assert read_kept(kept.folder).slots == kept.slots
    text = (kept.folder / CONFIGURATION).read_text()
    assert all(f"-u {identity} " in text for slots in kept.slots.values() for *_, identity in patterns(slots))


async def test_what_is_left_out_outlives_the_agent(site: Site, machines: tuple[int, int]) -> None:
    one, two = OWNERS[:2]
    ports = await serve(site, machines[0], [one, two])
    break_directive(site, one)
    await kill(site)
    await eventually_answers("m1", ports[two])
    await eventually_equal(lambda: site.said[-1] is not None and ports[two] in site.said[-1], True)
    await eventually_equal(lambda: network(site).kept.settled, True)  # else the next agent replaces the process
    first = site.pid
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    await eventually_equal(lambda: site.said[-1] is not None and ports[two] in site.said[-1], True)
    assert "nonsense" in (site.driver.failure_of(one) or "")
    assert (site.pid, site.driver.failure_of(two)) == (first, None)


async def test_a_port_that_another_program_has_keeps_no_other_from_being_served(
    site: Site, machines: tuple[int, int]
) -> None:
    """It is taken while HAProxy does not run."""
    one, two = OWNERS[:2]
    ports = await serve(site, machines[0], [one, two])
    with ExitStack() as stack:
        first = site.pid
        program = site.driver._keeper.program
        site.driver._keeper.program = replace(program, path="/nowhere")
        os.kill(first, signal.SIGKILL)
        await eventually_equal(lambda: site.said[-1], None)
        taken = stack.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", ports[one]))
        taken.listen(1)
        site.driver._keeper.program = program
        await eventually_answers("m1", ports[two])
        assert "cannot bind socket" in (site.driver.failure_of(one) or "")


@pytest.fixture
def checks() -> list[int]:
    return []


def checker(bad: Sequence[Owner], seen: list[int]) -> Callable[[Sequence[Owner]], Awaitable[None]]:
    async def check(owners: Sequence[Owner]) -> None:
        seen.append(len(owners))
        if found := [each for each in owners if each in bad]:
            raise NotStarted(f"no {found[0].id}")

    return check


def cases() -> Iterator[tuple[int, int]]:
    dice = Random(7)
    for _ in range(300):
        number = dice.randint(0, 200)
        yield number, dice.randint(0, min(number, 5))


async def test_bad_ones_are_found_by_few_checks(checks: list[int]) -> None:
    dice = Random(8)
    for number, wrong in cases():
        owners = [Owner(Kind.LOAD_BALANCER, str(each)) for each in range(number)]
        bad = dice.sample(owners, wrong)
        checks.clear()
        assert await find_unsound(owners, checker(bad, checks)) == {each: f"no {each.id}" for each in bad}
        assert len(checks) <= 1 + 2 * wrong * (1 + log2(max(number, 1)))
