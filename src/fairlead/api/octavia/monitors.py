"""Bodies of health monitors to values of the model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.api.door import ApiError
from fairlead.api.fields import Values
from fairlead.api.octavia import limits
from fairlead.api.octavia.caller import Origin, common, given
from fairlead.api.octavia.errors import bad_request
from fairlead.model.loadbalancer import (
    HTTP_MONITORS,
    HealthMonitor,
    HttpMonitor,
    MonitorType,
    PlainMonitor,
    PoolProtocol,
)

_DATAGRAMS = frozenset({PoolProtocol.UDP, PoolProtocol.SCTP})
_OF_DATAGRAMS = (MonitorType.UDP_CONNECT, MonitorType.SCTP, MonitorType.TCP, MonitorType.HTTP)
_HTTP_DEFAULTS: Mapping[str, Any] = {"http_method": "GET", "url_path": "/", "expected_codes": "200"}
"""What monitors of other types may not have, not even as a null in a PUT."""
_REQUIRED = ("delay", "timeout", "max_retries")


def decode_monitor(values: Values, origin: Origin, protocol: PoolProtocol) -> HealthMonitor:
    """`protocol` is its pool's. Raises ApiError."""
    _check_pool(values["type"], protocol)
    kind = HttpMonitor if values["type"] in HTTP_MONITORS else PlainMonitor
    monitor: HealthMonitor = kind(
        **origin.resource(),
        type=values["type"],
        delay=values["delay"],
        timeout=values["timeout"],
        max_retries=values["max_retries"],
    )
    return update_monitor(monitor, given(values))


def update_monitor(monitor: HealthMonitor, values: Values) -> HealthMonitor:
    """Raises ApiError. A null is the default, where there is one."""
    changes: dict[str, Any] = common(values)
    for name in _REQUIRED:
        if name in values:
            if values[name] is None:
                raise ApiError(400, f"None is not a valid option for {name}")
            changes[name] = values[name]
    if "max_retries_down" in values:
        changes["max_retries_down"] = values["max_retries_down"] or 3
    for name, default in _HTTP_DEFAULTS.items():
        if name in values:
            if not isinstance(monitor, HttpMonitor):
                raise ApiError(400, f"{name} is not a valid option for health monitors of type {monitor.type.value}")
            changes[name] = default if values[name] is None else values[name]
    changes |= {name: values[name] for name in ("http_version", "domain_name") if name in values}
    changed = replace(monitor, **changes)
    _check(changed, values)
    return changed


def _check(monitor: HealthMonitor, values: Values) -> None:
    if monitor.type is MonitorType.UDP_CONNECT and monitor.delay < limits.UDP_CONNECT_DELAY:
        raise bad_request(
            f"The request delay value {monitor.delay} should be larger than {limits.UDP_CONNECT_DELAY} for"
            f" {monitor.type.value} health monitor type."
        )
    if values.get("domain_name") and not monitor.http_version:
        raise bad_request("'http_version' must be specified when 'domain_name' is provided.")
    if monitor.domain_name and monitor.http_version == "1.0":
        raise ApiError(
            400, "http_version 1.0 is not a valid option for health monitors HTTP 1.1 domain name health check"
        )


def _check_pool(kind: MonitorType, protocol: PoolProtocol) -> None:
    if protocol in _DATAGRAMS and kind not in _OF_DATAGRAMS:
        types = "/".join(each.value for each in _OF_DATAGRAMS)
        raise bad_request(
            f"The associated pool protocol is {protocol.value}, so only a {types} health monitor is supported."
        )
    if protocol not in _DATAGRAMS and kind in (MonitorType.UDP_CONNECT, MonitorType.SCTP):
        raise bad_request(f"The {kind.value} type is only supported for pools of type UDP/SCTP.")
