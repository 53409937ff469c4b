"""Error texts of rejections by the rules of Local IPs (neutron-lib, exceptions/local_ip.py).

The texts are Fairlead's own where Neutron accepts the value or fails with an internal error.
"""

from collections.abc import Mapping

from fairlead.api.network.error_texts import NeutronErrorText, bad_resource_text
from fairlead.changes import associations, local_ips
from fairlead.changes.refusal import Refusal

_LOCAL_IPS: Mapping[type[Refusal], NeutronErrorText] = {
    local_ips.PortOrNetworkNeeded: NeutronErrorText(
        400,
        "LocalIPPortOrNetworkRequired",
        "Either Port ID or Network ID must be specified for Local IP create.",
    ),
    local_ips.NoLocalPort: bad_resource_text("local_ip", "Port {why.port_id} not found"),
    local_ips.NetworkWithoutSubnet: bad_resource_text(
        "local_ip", "Network {why.network_id} does not contain any IPv4 subnet"
    ),
    local_ips.NetworkIsExternal: bad_resource_text("local_ip", "Network {why.network_id} is external"),
    local_ips.PortIsNotMachine: bad_resource_text(
        "local_ip", "Port {why.port_id} has device owner {why.use}, so it is not the port of a machine"
    ),
    local_ips.LocalPortOfOtherProject: bad_resource_text(
        "local_ip", "Port {why.port_id} is not of the project of the Local IP"
    ),
    local_ips.LocalPortWithoutAddress: NeutronErrorText(
        400, "LocalIPNoIP", "Specified Port {why.port_id} has no fixed IPs configured."
    ),
    local_ips.PortLacksAddress: NeutronErrorText(
        400,
        "LocalIPRequestedIPNotFound",
        "Specified Port {why.port_id} does not have requested IP address: {why.address}.",
    ),
    local_ips.PortWithManyAddresses: NeutronErrorText(
        400,
        "LocalIPNoRequestedIP",
        "Specified Port {why.port_id} has several IPs, should specify exact IP address to use for Local IP.",
    ),
    local_ips.LocalIPExists: NeutronErrorText(
        409,
        "LocalIPAddressInUse",
        "IP address {why.address} of network {why.network_id} is the address of another Local IP.",
    ),
    local_ips.LocalIPAsReplica: NeutronErrorText(
        409,
        "LocalIPAddressInUse",
        "IP address {why.address} cannot be both a Local IP and associated with one: {why.local_ip_id}.",
    ),
    local_ips.LocalIPInUse: NeutronErrorText(
        409, "LocalIPInUse", "Local IP {why.local_ip_id} is still associated with one or more ports."
    ),
}
_ASSOCIATIONS: Mapping[type[Refusal], NeutronErrorText] = {
    associations.ReplicaOfItself: bad_resource_text(
        "port_association", "Port {why.port_id} has the address of Local IP {why.local_ip_id}"
    ),
    associations.ReplicaOnOtherNetwork: bad_resource_text(
        "port_association", "Port {why.port_id} is not on network {why.network_id} of the Local IP"
    ),
    associations.ReplicaIpVersionMismatch: bad_resource_text(
        "port_association",
        "Port {why.port_id} is associated by an IPv{why.version} address, which is the Local IP's version",
    ),
    associations.AlreadyAssociated: NeutronErrorText(
        409,
        "LocalIPPortAlreadyAssociated",
        "Local IP {why.local_ip_id} is already associated with port {why.port_id}.",
    ),
    associations.TooManyAssociations: NeutronErrorText(
        409,
        "LocalIPAssociationsExhausted",
        "Local IP {why.local_ip_id} has {why.most} associations, which is the maximum.",
    ),
    associations.NotAssociated: NeutronErrorText(
        404,
        "LocalIPAssociationNotFound",
        "Local IP {why.local_ip_id} association with port {why.port_id} could not be found.",
    ),
}
ERROR_TEXTS: Mapping[type[Refusal], NeutronErrorText] = {**_LOCAL_IPS, **_ASSOCIATIONS}
