"""Members that answer a client."""

from fairlead.lab import Protocol, Traffic, TrafficResult
from harness.lab.site import LabSite
from harness.waiting import wait_equal


def ask(site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP, count: int = 16) -> TrafficResult:
    return site.lab.traffic(client, Traffic(to=to, port=80, protocol=protocol, count=count, concurrency=8, timeout=5))


def answers(site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP) -> set[str]:
    found = ask(site, client, to, protocol)
    return {*found.answers, *found.errors}


def wait_answers(site: LabSite, client: str, to: str, members: set[str], protocol: Protocol = Protocol.TCP) -> None:
    """Wait until exactly these members answer the client, each at least once."""
    wait_equal(lambda: answers(site, client, to, protocol), members)
