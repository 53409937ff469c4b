"""Probes by SCTP: of servers in user space, so that no kernel has to have the protocol."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping

import pytest

from fairlead.model.checks import PlainCheck, Verdict
from fairlead.model.loadbalancer import MonitorType
from fairlead.node import sctp
from fairlead.node.prober import IPPROTO_SCTP
from node.test_prober import BUSY, HOSTS, SLOW, outcome, probe_all, target

SCTP = PlainCheck(type=MonitorType.SCTP)


def can_be_played() -> bool:
    """A kernel that has the protocol would answer beside whoever plays a server here."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SCTP):
        return False
    with contextlib.suppress(PermissionError), socket.socket(socket.AF_INET, socket.SOCK_RAW, IPPROTO_SCTP):
        return True
    return False


SPEAKERS = {7001: sctp.INIT_ACK, 7002: sctp.ABORT, 7003: sctp.INIT_ACK}
"""Ports, and what they answer; the last one to somebody else."""
TO_ANOTHER = 7003
SEEN = {7001: (Verdict.UP, ""), 7002: (Verdict.DOWN, "it refuses")}


@contextlib.contextmanager
def speaking_sctp(address: str, speakers: Mapping[int, int] = SPEAKERS) -> Iterator[None]:
    """At this address, as a kernel that has it does. Who asks with a wrong checksum is not heard."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_RAW, IPPROTO_SCTP) as speaker:
        speaker.setblocking(False)
        speaker.bind((address, 0))

        def answer() -> None:
            octets, who = speaker.recvfrom(4096)
            octets = octets[(octets[0] & 15) * 4 :] if family is socket.AF_INET else octets
            heard = sctp.read(octets)
            assert heard is not None
            if heard.chunk != sctp.INIT or heard.destination not in speakers:
                return
            assert octets == sctp.packet(heard.source, heard.destination, 0, octets[12:])
            tag = int.from_bytes(octets[16:20]) ^ (heard.destination == TO_ANOTHER)
            chunk = struct.pack("!BBHIIHHI", speakers[heard.destination], 0, 20, 77, 65536, 1, 1, 1)
            speaker.sendto(
                sctp.packet(heard.destination, heard.source, tag, chunk), (who[0], 0, *who[2:])
            )  # with the scope of a link

        loop.add_reader(speaker, answer)
        try:
            yield
        finally:
            loop.remove_reader(speaker)


@pytest.mark.skipif(not can_be_played(), reason="raw sockets are for root, and this kernel may have SCTP of its own")
async def test_sctp_is_asked_whatever_the_kernel_has():
    """One that answers, one that refuses, one whose answer is to somebody else, and one that is silent."""

    asked = {(port, version): target(SCTP, port, version) for port in (*SPEAKERS, 7004) for version in HOSTS}
    with speaking_sctp(HOSTS[4]), speaking_sctp(HOSTS[6]):
        found = await probe_all(asked)
    wanted = {key: SEEN.get(key[0], (Verdict.DOWN, SLOW)) for key in asked}
    seen = {key: outcome(each) for key, each in found.items()}
    assert seen == wanted | {key: BUSY for key, each in seen.items() if each == BUSY and key[0] not in SEEN}


def test_the_checksum_of_sctp_is_the_one_that_others_make():
    """RFC 3720, appendix B.4: 32 octets of zeros."""
    assert sctp.checksum(bytes(32)).to_bytes(4).hex() == "aa36918a"
