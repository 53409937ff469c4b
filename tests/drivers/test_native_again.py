"""Clients that reconnect from the same port after a slot has moved to or from their own host."""

import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import product

import pytest

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import HOSTS, PORT, VIPS, Fabric, fabric
from harness.net_namespace import NetNamespace, require_root
from harness.waiting import DEADLINE

pytestmark = pytest.mark.slow

INITIAL_SLOTS, CHANGED_SLOTS = bytes(256), bytes([1] * 256)
BOTH = Transport.TCP, Transport.UDP
TYPES = {Transport.TCP: socket.SOCK_STREAM, Transport.UDP: socket.SOCK_DGRAM}
PLACES = "behind the host", "on the host", "outside"


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def where_is(site: Fabric, name: str) -> NetNamespace:
    return {"behind the host": site.members[1], "on the host": site.hosts[1], "outside": site.client}[name]


def begin(client: NetNamespace, transport: Transport, vip: IPAddress) -> socket.socket:
    """Connect from a fixed source port."""
    with client.inside():
        made = socket.socket(socket.AF_INET if vip.version == 4 else socket.AF_INET6, TYPES[transport])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(DEADLINE)
    made.bind(("", 40_000))
    made.connect((str(vip), PORT))
    return made


def ask(made: socket.socket) -> str:
    """Return the name of the member that replies."""
    made.sendall(b"who")
    return made.recv(2000).decode()


def end(made: socket.socket) -> None:
    """Close the connection; with TCP, after a FIN in both directions."""
    if made.type is socket.SOCK_STREAM:
        made.shutdown(socket.SHUT_WR)
        assert made.recv(2000) == b""
    made.close()


def request_once(client: NetNamespace, transport: Transport, vip: IPAddress) -> str:
    with closing(begin(client, transport, vip)) as made:
        name = ask(made)
        end(made)
        return name


@pytest.mark.parametrize("where", PLACES)
def test_same_source_port_is_served_by_the_current_slot_owner(site: Fabric, where: str) -> None:
    """Conntrack entries of a host live for a minute or two. A host's own UDP flow stays tracked while it sends, so its
    packets are not new when the host's member gets the slot."""
    site.open()
    site.route_to(1)
    client = where_is(site, where)
    for slots, wanted in (CHANGED_SLOTS, "m2"), (INITIAL_SLOTS, "m1"), (CHANGED_SLOTS, "m2"), (INITIAL_SLOTS, "m1"):
        for number in HOSTS:
            site.serve(number, slots)
        for each in product((Transport.TCP,) if where == "on the host" else BOTH, VIPS):
            assert request_once(client, *each) == wanted, each


@pytest.mark.parametrize("where", PLACES)
def test_source_port_of_an_ended_connection_is_served_by_the_new_slot_owner(site: Fabric, where: str) -> None:
    """A source port is served by the slot's new owner after its connection with the previous owner has ended, although
    the new owner's host tracks that connection without translation."""
    client = asked(site, where)
    assert [request_once(client, Transport.TCP, vip) for vip in VIPS] == ["m1", "m1"]


@pytest.mark.parametrize("where", PLACES)
def test_untranslated_connection_never_reaches_a_socket_of_the_host(site: Fabric, where: str) -> None:
    """Packets of a connection that the host tracks without translation never reach a socket of its own on the same
    port."""
    client = asked(site, where)
    with site.hosts[1].inside():
        own = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    with closing(own):
        assert [request_once(client, Transport.TCP, vip) for vip in VIPS] == ["m1", "m1"]


def asked(site: Fabric, where: str) -> NetNamespace:
    """Return the client of a finished connection that stayed with the second host."""
    site.open()
    site.route_to(1)
    client = where_is(site, where)
    for number in HOSTS:
        site.serve(number, CHANGED_SLOTS)
    made = [begin(client, Transport.TCP, vip) for vip in VIPS]
    for number in HOSTS:
        site.serve(number, INITIAL_SLOTS, before=dict.fromkeys(range(256), 2) if number == 1 else {})
    assert [ask(each) for each in made] == ["m2", "m2"]
    for each in made:
        end(each)
    return client
