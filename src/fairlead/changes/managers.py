"""Networks that another program manages, with load balancers of its own: there are none of ours on these (ADR 43)."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.foreign import Writer, is_managed_elsewhere
from fairlead.model.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedElsewhere(Refusal):
    """A VIP needs a port of its network, which OVN answers for (`ignore_lsp_down`). On networks of this writer nothing
    makes one."""

    network: str
    """Its name."""
    writer: Writer


def check_manager(network: Network | None) -> None:
    """Whether a new load balancer may be on the network. Raises Refused."""
    if is_managed_elsewhere(network):
        raise Refused(ManagedElsewhere(network=network.name, writer=network.writer))


def say_managed(why: ManagedElsewhere) -> str:
    """The sentence, which is the same in every API."""
    return f"network {why.network} is managed by {why.writer.program}"
