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
from fairlead.drivers.haproxy.network import ProxyNetwork
from fairlead.drivers.haproxy.process import CONFIGURATION, NotStarted
from fairlead.drivers.haproxy.secrets import is_in_memory
from fairlead.drivers.haproxy.state import read_state
from fairlead.drivers.haproxy.validation import find_invalid_owners
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.agent_counters import OWNERS_LEFT_OUT
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, Reject
from fairlead.model.documents.loadbalancer import ListenerProtocol, ListenerTls
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.secrets import SecretRequest, SecretResponse
from harness.certificates import Authority
from harness.haproxy_site import NET, NETWORK, HaproxySite, eventually_answers, get, opened
from harness.ports import free_port
from harness.proxied import COMMON, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import eventually, eventually_equal

pytestmark = [needs_haproxy]
OWNERS = [Owner(Kind.LOAD_BALANCER, f"lb{number}") for number in range(5)]
MEMORY = Path("/dev/shm")
ISSUED = Authority().issue("web.example", "127.0.0.1")
PRIVATE = L7Rule(id="r", type=L7RuleType.PATH, compare_type=L7Comparison.STARTS_WITH, value="/private", **COMMON)
BROKEN = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


async def provide_secrets(wanted: Sequence[SecretRequest]) -> Sequence[SecretResponse]:
    return [SecretResponse(pem=ISSUED.certificate_and_key) for _ in wanted]


@pytest.fixture
async def site() -> AsyncIterator[HaproxySite]:
    if not MEMORY.exists() or not is_in_memory(MEMORY):
        pytest.skip("there is no tmpfs at /dev/shm")
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    async with opened(HaproxySite(folder, fetch=provide_secrets)) as made:
        yield made
        for owner in OWNERS:
            await made.apply_until_done(owner, {})
    shutil.rmtree(folder)


def rows_of(owner: Owner, port: int, machine: int, weight: int = 1, policies: tuple[L7Policy, ...] = ()) -> Rows:
    """A load balancer with a listener of HTTP at this port, and one that ends TLS."""
    web = pool(f"{owner.id}-pool", member("m1", machine, weight=weight))
    plain = replace(listener(f"{owner.id}-web", port, web), l7policies=policies)
    tls = ListenerTls(container_ref=owner.id)
    protocol = ListenerProtocol.TERMINATED_HTTPS
    safe = listener(f"{owner.id}-safe", free_port(), web, protocol=protocol, tls=tls)
    return HAPROXY.compile(view([plain, safe], [web]), WEB)


def network(site: HaproxySite) -> ProxyNetwork:
    [found] = site.driver._networks.values()
    return found


def break_directive(site: HaproxySite, owner: Owner) -> None:
    """As one that a newer HAProxy does not know any more."""
    rows = network(site).state.owners[owner]
    for key, row in rows.items():
        if isinstance(row, Frontend):
            rows[key] = replace(row, lines=(*row.lines, ("nonsense", "yes")))


def break_certificate(site: HaproxySite, owner: Owner) -> None:
    rows = network(site).state.owners[owner].values()
    [secret] = [each.secret for each in rows if hasattr(each, "secret")]
    (network(site).state.folder / secret.path).write_text(BROKEN)


CORRUPTIONS = [break_directive, break_certificate]
Corruption = Callable[[HaproxySite, Owner], None]


async def serve(site: HaproxySite, machine: int, owners: Sequence[Owner]) -> dict[Owner, int]:
    """The ports of these owners, which serve."""
    ports = {owner: free_port() for owner in owners}
    await site.apply_until_done(NET, NETWORK)
    for owner, port in ports.items():
        site.allow_replacement()
        await site.apply_until_done(owner, rows_of(owner, port, machine))
    for port in ports.values():
        await eventually_answers("m1", port)
    return ports


async def kill(site: HaproxySite) -> None:
    said = len(site.reported_ports)
    os.kill(site.pid, signal.SIGKILL)
    await eventually(lambda: None in site.reported_ports[said:] and site.reported_ports[-1] is not None)


async def others_serve_after_a_kill(site: HaproxySite, machine: int, dice: Random, how: Corruption) -> None:
    ports = await serve(site, machine, OWNERS[: dice.randint(2, len(OWNERS))])
    broken = dice.choice(list(ports))
    how(site, broken)
    await kill(site)
    for owner, port in ports.items():
        await eventually_answers("" if owner == broken else "m1", port)
    assert site.reported_ports[-1] is not None
    assert ports[broken] not in site.reported_ports[-1]
    assert {owner for owner in ports if site.driver.failure_of(owner)} == {broken}
    assert [broken] in site.failed_owners
    for owner in OWNERS:
        site.allow_replacement()
        await site.apply_until_done(owner, {})


@pytest.mark.parametrize("how", CORRUPTIONS)
async def test_other_load_balancers_serve_after_a_kill_beside_a_broken_one(
    site: HaproxySite, machines: tuple[int, int], how: Corruption
) -> None:
    await others_serve_after_a_kill(site, machines[0], Random(1), how)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(200))
async def test_other_load_balancers_serve_after_a_kill_in_random_scenarios(
    site: HaproxySite, machines: tuple[int, int], seed: int
) -> None:
    dice = Random(seed)
    await others_serve_after_a_kill(site, machines[0], dice, dice.choice(CORRUPTIONS))


async def test_repaired_load_balancer_is_served_again_and_others_can_change(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    one, two, three = OWNERS[:3]
    ports = await serve(site, machines[0], [one, two])
    break_directive(site, one)
    site.allow_replacement()
    ports[three] = free_port()
    await site.apply_until_done(three, rows_of(three, ports[three], machines[0]))
    await eventually_answers("m1", ports[three])
    await eventually_answers("m1", ports[two])
    assert await asyncio.to_thread(get, ports[one]) == ""
    assert "nonsense" in (site.driver.failure_of(one) or "")
    assert site.driver.counts()[OWNERS_LEFT_OUT] == 1
    site.allow_replacement()
    await site.apply_until_done(two, rows_of(two, ports[two], machines[0], weight=7))
    assert site.driver.failure_of(two) is None
    site.allow_replacement()
    await site.apply_until_done(one, rows_of(one, ports[one], machines[0]))
    await eventually_answers("m1", ports[one])
    assert (site.driver.failure_of(one), site.failed_owners[-1]) == (None, [one])
    assert site.driver.counts()[OWNERS_LEFT_OUT] == 0


async def test_rejected_change_leaves_the_previous_configuration_served(
    site: HaproxySite, machines: tuple[int, int]
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
        await site.apply_until_done(one, bad)
    await eventually_answers("m1", ports[one])
    await kill(site)
    await eventually_answers("m1", ports[one])
    assert "nonsense" in (site.driver.failure_of(two) or "")


async def test_policy_slots_after_a_certificate_renewal_equal_the_recorded_slots(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    """Commands and the next agent refer to slots, so each process has the slots that are recorded."""
    one, two, three = OWNERS[:3]
    rejecting = L7Policy(id="p", action=Reject(), rules=(PRIVATE,), **COMMON)
    await site.apply_until_done(NET, NETWORK)
    for owner in (one, two):
        port = free_port()
        rows = rows_of(owner, port, machines[0], policies=(rejecting,))
        site.allow_replacement()
        await site.apply_until_done(owner, rows)
        await eventually_answers("m1", port)
    frontends = set(network(site).state.slots)
    assert len(frontends) == 2
    break_certificate(site, one)
    await kill(site)
    await eventually_equal(lambda: network(site).state.is_applied, True)
    site.allow_replacement()
    await site.apply_until_done(three, rows_of(three, free_port(), machines[0]))
    assert f"{one.id}-web" not in network(site).state.slots
    await site.driver.refresh_secrets()
    await eventually_equal(lambda: site.driver.failure_of(one), None)
    kept = network(site).state
    assert kept.slots.keys() == frontends
    assert read_state(kept.folder).slots == kept.slots
    text = (kept.folder / CONFIGURATION).read_text()
    assert all(f"-u {identity} " in text for slots in kept.slots.values() for *_, identity in patterns(slots))


async def test_excluded_load_balancer_stays_excluded_after_an_agent_restart(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    one, two = OWNERS[:2]
    ports = await serve(site, machines[0], [one, two])
    break_directive(site, one)
    await kill(site)
    await eventually_answers("m1", ports[two])
    await eventually_equal(lambda: site.reported_ports[-1] is not None and ports[two] in site.reported_ports[-1], True)
    await eventually_equal(lambda: network(site).state.is_applied, True)  # else the next agent replaces the process
    first = site.pid
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    await eventually_equal(lambda: site.reported_ports[-1] is not None and ports[two] in site.reported_ports[-1], True)
    assert "nonsense" in (site.driver.failure_of(one) or "")
    assert (site.pid, site.driver.failure_of(two)) == (first, None)


async def test_occupied_port_of_one_listener_does_not_stop_other_listeners(
    site: HaproxySite, machines: tuple[int, int]
) -> None:
    """It is taken while HAProxy does not run."""
    one, two = OWNERS[:2]
    ports = await serve(site, machines[0], [one, two])
    with ExitStack() as stack:
        first = site.pid
        program = site.driver._supervisor.program
        site.driver._supervisor.program = replace(program, path="/nowhere")
        os.kill(first, signal.SIGKILL)
        await eventually_equal(lambda: site.reported_ports[-1], None)
        taken = stack.enter_context(socket.socket())
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", ports[one]))
        taken.listen(1)
        site.driver._supervisor.program = program
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


async def test_broken_owners_are_found_with_few_checks(checks: list[int]) -> None:
    dice = Random(8)
    for number, wrong in cases():
        owners = [Owner(Kind.LOAD_BALANCER, str(each)) for each in range(number)]
        bad = dice.sample(owners, wrong)
        checks.clear()
        assert await find_invalid_owners(owners, checker(bad, checks)) == {each: f"no {each.id}" for each in bad}
        assert len(checks) <= 1 + 2 * wrong * (1 + log2(max(number, 1)))
