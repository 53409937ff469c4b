"""Local IPs that OVN cannot implement are refused; the largest one is compiled in one step."""

from dataclasses import replace

import pytest

from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_rules import Acl, LogicalRouterPolicy
from fairlead.model.documents.local_ip import Fallback, Mode
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.snapshot import Snapshot
from harness.case import State, parse_chassis, parse_model, parse_plugged
from harness.step_counter import step
from harness.step_limits import MAX_STEPS

LIP = Owner(Kind.LOCAL_IP, "lip")


def snapshot_of(model: str) -> Snapshot:
    documents, down = parse_model(model, {})
    known = {"down": down, "plugged": parse_plugged(model), "chassis": parse_chassis(model)}
    return State(name="state", model=model, expected={}, documents=documents, **known).snapshot()


def many(replicas: int) -> Snapshot:
    """Return a model with two replicas on each chassis."""
    lines = ["network net1 10.0.0.0/16", "port owner net1 10.0.255.1"]
    lines += [f"port vm{number} net1 10.0.{number >> 7}.{10 + (number & 127)}" for number in range(replicas)]
    lines.append(f"local-ip lip net1 10.0.255.1 port=owner {' '.join(f'+vm{number}' for number in range(replicas))}")
    lines += [f"plugged chassis{number // 2} vm{number} vm{number + 1}" for number in range(0, replicas - 1, 2)]
    return snapshot_of("\n".join(lines))


@pytest.mark.parametrize(
    ("network", "address", "why"),
    [
        ("net1 external 10.0.0.0/24", "10.0.0.200", "Local IPs on an external network"),
        ("net1 10.0.0.0/31", "10.0.0.1", r"a Local IP in the subnet 10\.0\.0\.0/31, which is too small"),
        ("net1 fd00::/127", "fd00::1", "which is too small"),
    ],
)
def test_unsupported_local_ip_is_rejected(network: str, address: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        compile_owner(snapshot_of(f"network {network}\nlocal-ip lip net1 {address}"), LIP)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("fallback", [Fallback.FORWARD, Fallback.REJECT])
def test_largest_local_ip_is_compiled_in_one_step(mode: Mode, fallback: Fallback) -> None:
    snapshot = many(MAX_ASSOCIATIONS)
    local_ip = replace(snapshot.local_ips["lip"], mode=mode, fallback=fallback)
    snapshot = replace(snapshot, local_ips=snapshot.local_ips.set("lip", local_ip))
    before = step()
    rows = list(compile_owner(snapshot, LIP).values())
    assert step() - before < MAX_STEPS["reconciler"]
    if mode is Mode.TRANSLATE:
        assert sum(isinstance(row, ChassisVariable) for row in rows) == MAX_ASSOCIATIONS  # two for each chassis
    else:
        assert sum(isinstance(row, LogicalRouterPolicy) for row in rows) == MAX_ASSOCIATIONS
    assert all(len(row.match) < 20_000 for row in rows if isinstance(row, Acl))
