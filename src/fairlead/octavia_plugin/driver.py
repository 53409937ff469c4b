"""Provider driver: each call of Octavia's API becomes one request to Fairlead's plug-in API.

Octavia calls the driver between its flush and its commit. So the write also validates: if the server's compiler rejects
the change, Octavia rolls it back. A change that was written and never committed, because a process was killed in
between, is reverted by the agent.

Octavia creates a driver for each request, so it has no state, and opens no connection before a call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavia_lib.api.drivers import exceptions
from octavia_lib.api.drivers.provider_base import ProviderDriver
from oslo_config import cfg
from oslo_log import log

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin import bodies
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.octavia_plugin.options import make_plugin_api, read

LOG = log.getLogger(__name__)
_UNSUPPORTED = 501


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert a server's error to UnsupportedOptionError or DriverError with its message, which the tenant sees."""
    try:
        yield
    except ServerError as error:
        if error.status == _UNSUPPORTED:
            raise exceptions.UnsupportedOptionError(
                user_fault_string=str(error), operator_fault_string=str(error)
            ) from None
        if error.status is None or error.status >= 500 or error.status in (401, 403):
            told = "Fairlead is unavailable; nothing was changed in Octavia. Try again later."
            raise exceptions.DriverError(user_fault_string=told, operator_fault_string=str(error)) from None
        raise exceptions.DriverError(user_fault_string=str(error), operator_fault_string=str(error)) from None


class FairleadDriver(ProviderDriver):  # type: ignore[misc]
    """Entry point `fairlead` of octavia.api.drivers. All methods raise the exceptions of `_convert_errors`."""

    def create_vip_port(
        self, loadbalancer_id: str, project_id: str, vip_dictionary: Any, additional_vip_dicts: Any
    ) -> Any:
        """Leave the VIP's port to Octavia, which creates and deletes it in the tenant's project."""
        told = "Octavia creates the VIP port."
        raise exceptions.NotImplementedError(user_fault_string=told, operator_fault_string=told)

    # Load balancers

    def loadbalancer_create(self, loadbalancer: Any) -> None:
        self._post("/loadbalancers", "loadbalancer", bodies.load_balancer(loadbalancer))

    def loadbalancer_delete(self, loadbalancer: Any, cascade: bool = False) -> None:
        self._delete(f"/loadbalancers/{loadbalancer.loadbalancer_id}{'?cascade=true' if cascade else ''}")

    def loadbalancer_update(self, old_loadbalancer: Any, new_loadbalancer: Any) -> None:
        body = bodies.changed(new_loadbalancer, bodies.LOAD_BALANCER)
        self._put(f"/loadbalancers/{new_loadbalancer.loadbalancer_id}", "loadbalancer", body)

    def loadbalancer_failover(self, loadbalancer_id: str) -> None:
        """Re-read and repair the rows; the status is ACTIVE after that. There is no instance to fail over."""
        with _convert_errors():
            _plugin_api().fail_over(loadbalancer_id)

    def loadbalancer_failover_with_flavor(self, loadbalancer_id: str, flavor_id: str) -> None:
        """Fail over; the flavor has no effect on it."""
        self.loadbalancer_failover(loadbalancer_id)

    # Listeners

    def listener_create(self, listener: Any) -> None:
        self._post("/listeners", "listener", bodies.listener_of(listener))

    def listener_delete(self, listener: Any) -> None:
        self._delete(f"/listeners/{listener.listener_id}")

    def listener_update(self, old_listener: Any, new_listener: Any) -> None:
        self._put(f"/listeners/{new_listener.listener_id}", "listener", bodies.changed(new_listener, bodies.LISTENER))

    # Pools

    def pool_create(self, pool: Any) -> None:
        self._post("/pools", "pool", bodies.pool_of(pool))

    def pool_delete(self, pool: Any) -> None:
        self._delete(f"/pools/{pool.pool_id}")

    def pool_update(self, old_pool: Any, new_pool: Any) -> None:
        self._put(f"/pools/{new_pool.pool_id}", "pool", bodies.changed(new_pool, bodies.POOL))

    # Members

    def member_create(self, member: Any) -> None:
        self._post(f"/pools/{member.pool_id}/members", "member", bodies.member_of(member))

    def member_delete(self, member: Any) -> None:
        self._delete(f"/pools/{member.pool_id}/members/{member.member_id}")

    def member_update(self, old_member: Any, new_member: Any) -> None:
        path = f"/pools/{old_member.pool_id}/members/{new_member.member_id}"
        self._put(path, "member", bodies.changed(new_member, bodies.MEMBER))

    def member_batch_update(self, pool_id: str, members: Any) -> None:
        """Replace all members in one change."""
        self._put(f"/pools/{pool_id}/members", "members", [bodies.member_of(each) for each in members])

    # Health monitors

    def health_monitor_create(self, healthmonitor: Any) -> None:
        self._post("/healthmonitors", "healthmonitor", bodies.monitor_of(healthmonitor))

    def health_monitor_delete(self, healthmonitor: Any) -> None:
        self._delete(f"/healthmonitors/{healthmonitor.healthmonitor_id}")

    def health_monitor_update(self, old_healthmonitor: Any, new_healthmonitor: Any) -> None:
        body = bodies.changed(new_healthmonitor, bodies.MONITOR)
        self._put(f"/healthmonitors/{new_healthmonitor.healthmonitor_id}", "healthmonitor", body)

    # Layer 7; the server checks whether it is supported

    def l7policy_create(self, l7policy: Any) -> None:
        self._post("/l7policies", "l7policy", bodies.policy_of(l7policy))

    def l7policy_delete(self, l7policy: Any) -> None:
        self._delete(f"/l7policies/{l7policy.l7policy_id}")

    def l7policy_update(self, old_l7policy: Any, new_l7policy: Any) -> None:
        self._put(f"/l7policies/{new_l7policy.l7policy_id}", "l7policy", bodies.changed(new_l7policy, bodies.L7_POLICY))

    def l7rule_create(self, l7rule: Any) -> None:
        self._post(f"/l7policies/{l7rule.l7policy_id}/rules", "rule", bodies.rule_of(l7rule))

    def l7rule_delete(self, l7rule: Any) -> None:
        self._delete(f"/l7policies/{l7rule.l7policy_id}/rules/{l7rule.l7rule_id}")

    def l7rule_update(self, old_l7rule: Any, new_l7rule: Any) -> None:
        path = f"/l7policies/{old_l7rule.l7policy_id}/rules/{new_l7rule.l7rule_id}"
        self._put(path, "rule", bodies.changed(new_l7rule, bodies.L7_RULE))

    # Flavors and availability zones

    def get_supported_flavor_metadata(self) -> dict[str, str]:
        with _convert_errors():
            return dict(_plugin_api().profiles()["flavor"])

    def get_supported_availability_zone_metadata(self) -> dict[str, str]:
        with _convert_errors():
            return dict(_plugin_api().profiles()["availability_zone"])

    def validate_flavor(self, flavor_metadata: Any) -> None:
        self._post("/profiles", "profiles", {"flavor": flavor_metadata})

    def validate_availability_zone(self, availability_zone_metadata: Any) -> None:
        self._post("/profiles", "profiles", {"availability_zone": availability_zone_metadata})

    def _post(self, path: str, root: str, body: bodies.Body) -> None:
        with _convert_errors():
            _plugin_api().post(path, root, body)

    def _put(self, path: str, root: str, body: object) -> None:
        with _convert_errors():
            _plugin_api().put(path, root, body)

    def _delete(self, path: str) -> None:
        with _convert_errors():
            _plugin_api().delete(path)


def _plugin_api() -> PluginApi:
    return make_plugin_api(read(cfg.CONF))
