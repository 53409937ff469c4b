"""The places of a lab, whatever its dataplane is: programs are run there, and traffic is sent from there."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import msgspec

from fairlead.lab import load, records
from fairlead.lab.client import Traffic, TrafficResult
from fairlead.lab.held_connection import HeldConnection, holding
from fairlead.lab.layout import Layout
from fairlead.lab.processes import RUN_TIMEOUT, LabCommand, run


@dataclass(frozen=True, slots=True, kw_only=True)
class LabBase(ABC):
    layout: Layout

    @property
    def name(self) -> str:
        return self.layout.name

    @abstractmethod
    def command(self, place: str, argv: Sequence[str]) -> LabCommand:
        """What runs a program in a node or workload."""

    def exec(self, place: str, argv: Sequence[str], *, stdin: str = "", timeout: float = RUN_TIMEOUT) -> str:
        """Run a program to its end in a node or workload and give what it prints."""
        return run(self.command(place, argv), stdin=stdin, timeout=timeout)

    def traffic(self, place: str, traffic: Traffic) -> TrafficResult:
        """Send it from a workload and say who answered."""
        argv = _render_client_argv(self._with_ports(place, traffic), "--keys")
        answer = self.exec(place, argv, timeout=traffic.seconds() + 30)
        return msgspec.json.decode(answer, type=TrafficResult)

    def hold(self, place: str, traffic: Traffic) -> AbstractContextManager[HeldConnection]:
        """Keep one connection open for the length of a `with` block."""
        return holding(self.command(place, _render_client_argv(self._with_ports(place, traffic), "--hold")))

    def load(self, place: str, steady: load.Load) -> AbstractContextManager[load.RunningLoad]:
        """Steady traffic from a workload for the length of a `with` block, or until it is stopped."""
        first = records.allocate_source_ports(self.layout, place, steady.held + steady.count)
        return load.run_load(self.command(place, load.argv(replace(steady, source_port_from=first))))

    def _with_ports(self, place: str, traffic: Traffic) -> Traffic:
        if traffic.source_port_from is not None:
            return traffic
        return replace(traffic, source_port_from=records.allocate_source_ports(self.layout, place, traffic.count))


def _render_client_argv(traffic: Traffic, mode: str) -> tuple[str, ...]:
    ports = () if traffic.source_port_from is None else ("--source-port-from", str(traffic.source_port_from))
    bounds = ("--count", str(traffic.count), "--timeout", str(traffic.timeout))
    how = ("--concurrency", str(traffic.concurrency), "--size", str(traffic.size))
    target = ("--to", traffic.to, "--port", str(traffic.port), "--protocol", str(traffic.protocol))
    return (sys.executable, "-m", "fairlead.lab.traffic", *target, *bounds, *how, *ports, mode)
