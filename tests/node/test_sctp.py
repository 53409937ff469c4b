"""SCTP probes of servers in user space, so the kernel need not support the protocol."""

import pytest

from fairlead.model.documents.checks import PlainCheck, Verdict
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.node import sctp
from harness.probed import HOSTS, SLOW, outcome, probe_all, target
from harness.sctp_servers import REPLY_BY_PORT, can_emulate_sctp, sctp_servers

SCTP = PlainCheck(type=MonitorType.SCTP)
SEEN = {7001: (Verdict.UP, ""), 7002: (Verdict.DOWN, "connection refused")}


@pytest.mark.virtual_clock
@pytest.mark.skipif(not can_emulate_sctp(), reason="raw sockets are for root, and this kernel may have SCTP of its own")
async def test_sctp_probes_work_without_kernel_support():
    """One server answers, one aborts, one answers with another association's tag, and one is silent."""

    asked = {(port, version): target(SCTP, port, version) for port in (*REPLY_BY_PORT, 7004) for version in HOSTS}
    with sctp_servers(HOSTS[4]), sctp_servers(HOSTS[6]):
        found = await probe_all(asked)
    wanted = {key: SEEN.get(key[0], (Verdict.DOWN, SLOW)) for key in asked}
    assert {key: outcome(each) for key, each in found.items()} == wanted


def test_sctp_checksum_matches_rfc_3720():
    """32 zero bytes (RFC 3720, appendix B.4)."""
    assert sctp.checksum(bytes(32)).to_bytes(4).hex() == "aa36918a"
