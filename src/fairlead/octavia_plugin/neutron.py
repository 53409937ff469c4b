"""Neutron, by Octavia's own client: the service that Octavia has configured, with its account."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keystoneauth1.exceptions import ClientException
from octavia.common import clients, utils
from octavia.network.base import NetworkException
from openstack.exceptions import SDKException

from fairlead.octavia_plugin.adoption import NotAnswered


@contextmanager
def answered() -> Iterator[None]:
    """What Octavia's driver, its client and the session below it raise, as one: NotAnswered.

    Octavia keeps one connection, and openstacksdk one that was made while Neutron was away asks at places without a
    version for ever (404). So after an error the next one is a new one.
    """
    try:
        yield
    except (NetworkException, SDKException, ClientException) as error:
        clients.NeutronAuth.neutron_client = None
        raise NotAnswered("neutron", f"Neutron: {error}") from error


def driver() -> Any:
    return utils.get_network_driver()


def neutron() -> Any:
    """openstacksdk's proxy."""
    return clients.NeutronAuth.get_neutron_client().network
