"""Rejects load balancers on networks that LXD or Incus manages: OVN would not forward their packets (ADR 43)."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.network import Network
from fairlead.model.documents.unmanaged import Writer, is_managed_elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedElsewhere(Refusal):
    """The network belongs to another program. OVN answers for a VIP only if the network has a port for it
    (`ignore_lsp_down`), and that program makes no such port."""

    network: str
    """Name of the network."""
    writer: Writer


def check_manager(network: Network | None) -> None:
    """Raise Refused for a new load balancer on a network that another program manages."""
    if is_managed_elsewhere(network):
        raise Refused(ManagedElsewhere(network=network.name, writer=network.writer))


def describe_managed_elsewhere(why: ManagedElsewhere) -> str:
    """Return the text of this refusal; all APIs use the same one."""
    return f"network {why.network} is managed by {why.writer.program}"
