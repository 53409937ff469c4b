"""Parser and encoder of `external_gateway_info`, the external gateway of a router."""

from fairlead.api.http.front_end import JsonObject
from fairlead.api.network import parsers
from fairlead.changes.gateways import GatewayRequest
from fairlead.model.documents.network import Router
from fairlead.model.snapshot import Snapshot
from fairlead.schema import object_schema, reads

_KEYS = ("network_id", "enable_snat", "external_fixed_ips")


@reads(
    object_schema(
        {
            "network_id": parsers.uuid.schema,
            "enable_snat": parsers.boolean.schema,
            "external_fixed_ips": parsers.fixed_ips.schema,
        }
    )
)
def read_gateway(value: object) -> GatewayRequest:
    """Parse `external_gateway_info`. An empty object removes the gateway, as in Neutron."""
    if not isinstance(value, dict):
        raise ValueError(f"'{value}' is not a dictionary")
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    if unknown:
        raise ValueError(f"Unexpected keys supplied: {', '.join(unknown)}")
    if value and value.get("network_id") is None and set(value) != {"network_id"}:
        raise ValueError("Validation of dictionary's keys failed. Expected keys: {'network_id'}")
    snat, fixed_ips = value.get("enable_snat"), value.get("external_fixed_ips")
    return GatewayRequest(
        network_id=None if value.get("network_id") is None else parsers.uuid(value["network_id"]),
        enable_snat=None if snat is None else parsers.boolean(snat),
        fixed_ips=None if not fixed_ips else parsers.fixed_ips(fixed_ips),
    )


def encode_gateway(snapshot: Snapshot, router: Router) -> JsonObject | None:
    gateway = router.gateway
    if gateway is None:
        return None
    port = snapshot.ports[gateway.port_id]
    fixed = [{"subnet_id": each.subnet_id, "ip_address": str(each.address)} for each in port.fixed_ips]
    return {"network_id": gateway.network_id, "enable_snat": gateway.enable_snat, "external_fixed_ips": fixed}
