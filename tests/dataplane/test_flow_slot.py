"""Slots computed by the kernel; `tests/drivers/test_native_slots.py` compares them with a live kernel, as root."""

from ipaddress import ip_address

import pytest

from fairlead.dataplane.flow_slot import flow_slot, source_slot
from fairlead.model.documents.loadbalancer import Transport


@pytest.mark.parametrize(
    ("client", "vip", "transport", "slot", "by_source"),
    [
        ("192.0.2.7", "203.0.113.5", Transport.TCP, 253, 96),
        ("192.0.2.7", "203.0.113.5", Transport.UDP, 154, 96),
        ("2001:db8:1::7", "2001:db8::5", Transport.TCP, 44, 249),
    ],
)
def test_flow_slot_matches_the_kernel(client: str, vip: str, transport: Transport, slot: int, by_source: int) -> None:
    source, destination = ip_address(client), ip_address(vip)
    assert flow_slot((source, 40000), (destination, 443), transport) == slot
    assert source_slot(source, destination) == by_source
