"""Change of a load balancer's provider in Octavia's database: the plug-in's only write to it.

Octavia has no API for that. So Octavia's own models write the provider and the related columns: PENDING_UPDATE, which
locks the load balancer as during any change, and ownership of the VIP's port, so that Octavia deletes it if the other
provider created it.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from octavia.common import constants
from octavia.db import api, models
from octavia.network.base import PortNotFound
from oslo_db.exception import DBError
from sqlalchemy.exc import SQLAlchemyError

from fairlead.octavia_plugin import database_bodies
from fairlead.octavia_plugin.adoption import STOCK, BalancerRecord, ServiceFailed, TakeoverForbidden
from fairlead.octavia_plugin.bodies import Body
from fairlead.octavia_plugin.neutron import convert_errors, driver

STOCK_PORT = "ovn-lb-vip-"
"""Name prefix of ports that the stock provider creates for VIPs."""
STABLE_STATUSES = ("ACTIVE", "ERROR")
"""Provisioning statuses that allow a takeover: no change is in progress."""


class Handover:
    """Octavia's rows; `provider` is the plug-in's provider name. All methods raise NotAnswered."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def find(self, name: str) -> BalancerRecord:
        """Find a load balancer by id or name. Raises NotHandedOver."""
        with _session() as session:
            rows = session.query(models.LoadBalancer).filter(models.LoadBalancer.provisioning_status != "DELETED")
            found = rows.filter_by(id=name).all() or rows.filter_by(name=name).limit(2).all()
            if len(found) != 1:
                several = "more than one load balancer" if found else "no load balancer"
                raise TakeoverForbidden("ambiguous" if found else "unknown", f"Octavia has {several} {name}")
            return BalancerRecord(
                id=found[0].id,
                provider=found[0].provider,
                provisioning=found[0].provisioning_status,
                vip_port_id=found[0].vip.port_id,
            )

    def look(self, balancer_id: str) -> Body:
        """Return the body that the driver would send. Raises NotHandedOver."""
        with _session() as session:
            row = session.query(models.LoadBalancer).filter_by(id=balancer_id).first()
            self._check(row, balancer_id)
            return database_bodies.load_balancer(row)

    @contextmanager
    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> Iterator[Body]:
        """Set the provider when the block is left without an exception.

        The row is locked in the block, as in Octavia's API, and other sessions do not see the change. Raises
        NotHandedOver.
        """
        with _session() as session:
            rows = session.query(models.LoadBalancer).populate_existing().with_for_update()
            row = rows.filter_by(id=balancer_id).first()
            self._check(row, balancer_id)
            row.provider, row.provisioning_status = self._provider, "PENDING_UPDATE"
            if port_was_made:
                row.vip.octavia_owned = True
            session.flush()
            yield database_bodies.load_balancer(row)

    def _check(self, row: Any, balancer_id: str) -> None:
        """Check the provider and the status. A load balancer of this provider may have any status: it was handed over
        before, and Fairlead does not have it yet."""
        if row is None or row.provisioning_status == "DELETED":
            raise TakeoverForbidden("unknown", f"Octavia has no load balancer {balancer_id}")
        if row.provider not in (STOCK, self._provider):
            raise TakeoverForbidden(
                "provider", f"provider is {row.provider}; only load balancers of provider {STOCK} can be taken over"
            )
        if row.provider == STOCK and row.provisioning_status not in STABLE_STATUSES:
            words = f"provisioning_status is {row.provisioning_status}; retry when provider {STOCK} has finished"
            raise TakeoverForbidden("pending", words)


class VipPorts:
    """VIP ports in Neutron, through Octavia's client. All methods raise NotAnswered."""

    def is_stock_port(self, port_id: str) -> bool:
        """Whether the stock provider created the port, and would have deleted it."""
        with convert_errors():
            try:
                return driver().get_port(port_id).name.startswith(STOCK_PORT)  # type: ignore[no-any-return]
            except PortNotFound:
                raise TakeoverForbidden("port", f"Neutron has no port {port_id}, the port of its VIP") from None

    def hand_to_octavia(self, port_id: str, balancer_id: str) -> None:
        """Change the port to one created by Octavia, so that Octavia deletes it, and the stock provider ignores it."""
        said = {"name": f"octavia-lb-{balancer_id}", "device_id": f"lb-{balancer_id}"}
        with convert_errors():
            driver().network_proxy.update_port(port_id, device_owner=constants.OCTAVIA_OWNER, **said)


@contextmanager
def _session() -> Iterator[Any]:
    """Open a session. Errors of SQLAlchemy and oslo.db become NotAnswered."""
    try:
        session = api.get_session()
        with closing(session), session.begin():
            yield session
    except (DBError, SQLAlchemyError) as error:
        raise ServiceFailed("database", f"Octavia's database: {error}") from error
