"""Neutron through Octavia's client: the service and account that Octavia is configured with."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keystoneauth1.exceptions import ClientException
from octavia.common import clients, utils
from octavia.network.base import NetworkException
from openstack.exceptions import SDKException

from fairlead.octavia_plugin.adoption import ServiceFailed


@contextmanager
def convert_errors() -> Iterator[None]:
    """Convert errors of Octavia's driver, its client and the session below to NotAnswered.

    Octavia caches one connection. If openstacksdk created it while Neutron was down, it sends all requests to URLs
    without a version (404). So an error drops the connection.
    """
    try:
        yield
    except (NetworkException, SDKException, ClientException) as error:
        clients.NeutronAuth.neutron_client = None
        raise ServiceFailed("neutron", f"Neutron: {error}") from error


def driver() -> Any:
    return utils.get_network_driver()


def neutron() -> Any:
    """Return openstacksdk's network proxy."""
    return clients.NeutronAuth.get_neutron_client().network
