"""Every stock command, and the SDK, for quotas, flavors, availability zones, providers and amphorae."""

from collections.abc import Iterator
from pathlib import Path

import openstack
import pytest
from openstack import exceptions
from openstack.connection import Connection

from harness.catalog import UNKNOWN_ID, run_every_command
from harness.served import served, write_clouds
from harness.shell import LoadBalancerShell, shell

pytestmark = pytest.mark.client


@pytest.fixture
def clouds(tmp_path: Path) -> Iterator[Path]:
    with served(tmp_path) as address:
        yield write_clouds(tmp_path, address)


@pytest.fixture
def cli(clouds: Path) -> Iterator[LoadBalancerShell]:
    with shell(clouds) as typed:
        yield LoadBalancerShell(typed)


def test_every_catalog_and_quota_command_of_the_cli_works(cli: LoadBalancerShell):
    run_every_command(cli)


@pytest.fixture
def cloud(clouds: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    with openstack.connect(cloud="fairlead") as connection:
        yield connection


def test_sdk_manages_quotas_flavors_and_availability_zones(cloud: Connection):
    lb = cloud.load_balancer
    assert lb.get_quota_default().load_balancers == -1
    assert lb.update_quota("p1", listeners=3, health_monitors=2).listeners == 3
    assert [(quota.project_id, quota.listeners, quota.pools) for quota in lb.quotas()] == [("p1", 3, -1)]
    assert lb.get_quota("p1").health_monitors == 2
    lb.delete_quota("p1")
    assert list(lb.quotas()) == []

    profile = lb.create_flavor_profile(name="fp", provider_name="ovn", flavor_data="{}")
    assert lb.find_flavor_profile("fp").id == profile.id
    assert lb.update_flavor_profile(profile, name="fq").name == "fq"
    flavor = lb.create_flavor(name="gold", flavor_profile_id=profile.id)
    assert (flavor.is_enabled, lb.find_flavor("gold").id) == (True, flavor.id)
    assert [found.name for found in lb.flavors(is_enabled=True)] == ["gold"]
    assert lb.update_flavor(flavor, description="d").description == "d"
    with pytest.raises(exceptions.ConflictException):
        lb.delete_flavor_profile(profile)
    lb.delete_flavor(flavor)
    lb.delete_flavor_profile(profile)
    assert (list(lb.flavors()), list(lb.flavor_profiles())) == ([], [])

    zone_profile = lb.create_availability_zone_profile(name="zp", provider_name="ovn", availability_zone_data="{}")
    zone = lb.create_availability_zone(name="east", availability_zone_profile_id=zone_profile.id)
    assert [found.name for found in lb.availability_zones()] == ["east"]
    assert lb.get_availability_zone("east").availability_zone_profile_id == zone_profile.id
    assert lb.update_availability_zone("east", is_enabled=False).is_enabled is False
    assert zone.name == "east"
    lb.delete_availability_zone("east")
    assert [found.name for found in lb.availability_zone_profiles()] == ["zp"]
    lb.delete_availability_zone_profile(zone_profile)

    found = [(provider.name, bool(provider.description)) for provider in lb.providers()]
    assert found == [("fairlead", True), ("ovn", True)]
    assert list(lb.provider_flavor_capabilities("ovn")) == []
    assert list(lb.amphorae()) == []
    with pytest.raises(exceptions.NotFoundException):
        lb.get_amphora(UNKNOWN_ID)
