"""Flavors, availability zones, their profiles, providers and amphorae: Octavia's bodies, rules and texts."""

from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import octavia
from fairlead.api.octavia.catalog import NIL
from fairlead.api.octavia.providers import provider_routes
from fairlead.compilers import providers
from fairlead.compilers.providers import IMPLEMENTATIONS, parse_names
from fairlead.model.documents.status import ProvisioningStatus, derive_provisioning_status
from fairlead.model.registry.changeset import Changes, owners_with_rows
from harness.api import InProcessServer, in_process_server
from harness.front_ends.octavia_world import OctaviaFrontEnd
from harness.octavia import NET, ROOT, SUBNET, UNKNOWN_ID, caller, create, error_of, network, play_octavia

FAMILIES = ("flavor", "availability_zone")


class Names:
    """Names of one family: flavors or availability zones."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.profile_root = {"flavor": "flavorprofile"}.get(root, f"{root}_profile")
        self.path, self.profile_path = (f"{name.replace('_', '')}s" for name in (root, self.profile_root))
        self.words = root.replace("_", " ").title()
        self.in_use = {"flavor": "Flavor profile"}.get(root, f"{self.words} Profile")
        self.data, self.profile_id = f"{root}_data", f"{root}_profile_id"

    async def make_profile(self, place: InProcessServer, **more: Any) -> Any:
        body = {"name": "p", "provider_name": "ovn", self.data: "{}", **more}
        return await create(place, self.profile_path, self.profile_root, **body)

    async def make(self, place: InProcessServer, profile: str, **more: Any) -> Any:
        return await create(place, self.path, self.root, **{"name": "gold", self.profile_id: profile, **more})

    def key(self, made: Any) -> str:
        return made["id"] if self.root == "flavor" else made["name"]


@pytest.fixture(params=FAMILIES)
def names(request: pytest.FixtureRequest) -> Names:
    return Names(request.param)


def test_flavors_and_zones_from_create_to_delete(tmp_path: Path, names: Names):
    async def story(place: InProcessServer) -> None:
        profile = await names.make_profile(place)
        assert profile == {"id": profile["id"], "name": "p", "provider_name": "ovn", names.data: "{}"}
        made = await names.make(place, profile["id"])
        own = {"id": made["id"]} if names.root == "flavor" else {}
        assert made == {**own, "name": "gold", "description": "", "enabled": True, names.profile_id: profile["id"]}
        where, profile_where = f"{names.path}/{names.key(made)}", f"{names.profile_path}/{profile['id']}"
        listed = await place.call_ok("GET", f"{ROOT}/{names.path}?enabled=true&name=gold")
        assert listed == {f"{names.root}s": [made], f"{names.root}s_links": []}
        listed = await place.call_ok("GET", f"{ROOT}/{names.profile_path}")
        assert listed == {f"{names.profile_root}s": [profile], f"{names.profile_root}_links": []}
        update = {names.root: {"enabled": False, "description": "shiny"}}
        changed = (await place.call_ok("PUT", f"{ROOT}/{where}", update))[names.root]
        assert changed == {**made, "enabled": False, "description": "shiny"}
        assert await place.call_ok("GET", f"{ROOT}/{where}") == {names.root: changed}
        changed = (await place.call_ok("PUT", f"{ROOT}/{where}", {names.root: {"description": None}}))[names.root]
        assert changed["description"] == ""
        renamed = await place.call_ok("PUT", f"{ROOT}/{profile_where}", {names.profile_root: {"name": "q"}})
        assert renamed[names.profile_root]["name"] == "q"
        words = f"{names.in_use} {profile['id']} is in use and cannot be modified."
        for change in ({names.data: "{}"}, {"provider_name": "ovn"}):
            assert await error_of(place, "PUT", profile_where, {names.profile_root: change}) == (409, words)
        assert await error_of(place, "DELETE", profile_where) == (409, words)
        await place.call_ok("DELETE", f"{ROOT}/{where}")
        assert await error_of(place, "GET", where) == (404, f"{names.words} {names.key(made)} not found.")
        await place.call_ok("PUT", f"{ROOT}/{profile_where}", {names.profile_root: {names.data: " {}"}})
        assert (await place.call_ok("GET", f"{ROOT}/{profile_where}"))[names.profile_root][names.data] == " {}"
        await place.call_ok("DELETE", f"{ROOT}/{profile_where}")
        assert set(place.model.snapshot.generations) == set(owners_with_rows(place.model.snapshot))
        assert [document.key for document in (await place.store.range("claim/flavor"))[0]] == []

    play_octavia(tmp_path, story)


def test_invalid_catalog_requests_are_refused_and_write_nothing(tmp_path: Path, names: Names):
    async def story(place: InProcessServer) -> None:
        profile = await names.make_profile(place)
        made = await names.make(place, profile["id"])
        where, profiles = f"{names.path}/{names.key(made)}", names.profile_path
        whole = {"name": "p", "provider_name": "ovn", names.data: "{}"}
        offer = {"name": "new", names.profile_id: profile["id"]}
        bad: list[tuple[str, str, Any, int, str]] = [
            ("POST", profiles, {**whole, names.data: "{"}, 400, f"{{ is not a valid option for {names.data}"),
            ("POST", profiles, {**whole, names.data: "[]"}, 400, f"[] is not a valid option for {names.data}"),
            ("POST", profiles, {**whole, names.data: "[" * 4096}, 400, f"is not a valid option for {names.data}"),
            ("POST", profiles, {**whole, names.data: " " * 4097}, 400, "maximum character requirement of 4096"),
            ("POST", profiles, {**whole, names.data: '{"x": 1}'}, 501,
             f"Provider 'ovn' does not support a requested option: {names.data} x"),
            ("POST", profiles, {**whole, "provider_name": "amphora"}, 400, "Provider 'amphora' is not enabled."),
            ("POST", profiles, {"name": "p"}, 400, "Mandatory field missing."),
            ("PUT", f"{profiles}/{profile['id']}", {"name": None}, 400, "None is not a valid option for name"),
            ("PUT", f"{profiles}/{UNKNOWN_ID}", {"name": "x"}, 404, f"{names.words} Profile {UNKNOWN_ID} not found."),
            ("DELETE", f"{profiles}/{UNKNOWN_ID}", None, 404, f"{names.in_use} {UNKNOWN_ID} not found."),
            ("GET", f"{profiles}/{NIL}", None, 404, f"{names.in_use} {NIL} not found."),
            ("PUT", f"{profiles}/{NIL}", {"name": "x"}, 404, f"{names.in_use} {NIL} not found."),
            ("DELETE", f"{profiles}/{NIL}", None, 404, f"{names.in_use} {NIL} not found."),
            ("POST", names.path, {**offer, names.profile_id: UNKNOWN_ID}, 400, f"Profile {UNKNOWN_ID} not found."),
            ("POST", names.path, {**offer, names.profile_id: "x"}, 400, "Value should be UUID format"),
            ("POST", names.path, {**offer, "name": "gold"}, 409,
             f"A {names.words.lower()} of gold already exists."),
            ("POST", names.path, {"name": "x"}, 400, f"{names.profile_id}. Value: 'None'. Mandatory field missing."),
            ("PUT", where, {names.profile_id: profile["id"]}, 400,
             f"Unknown attribute for argument {names.root}_.{names.root}: {names.profile_id}"),
            ("PUT", where, {"enabled": None}, 400, "None is not a valid option for enabled"),
            ("PUT", where, {"enabled": "maybe"}, 400, "Value should be a boolean."),
            ("DELETE", f"{names.path}/{UNKNOWN_ID}", None, 404, f"{names.words} {UNKNOWN_ID} not found."),
        ]  # fmt: skip
        before = await place.store.range("")
        for method, path, body, status, words in bad:
            root = names.profile_root if path.startswith(profiles) else names.root
            got = await error_of(place, method, path, body and {root: body})
            assert (got[0], words in got[1]) == (status, True), (method, path, body, got)
        for name in ("", "a/b", "..") if names.root != "flavor" else ():
            got = await error_of(place, "POST", names.path, {names.root: {**offer, "name": name}})
            assert (got[0], "without slashes" in got[1]) == (400, True)
        assert await place.store.range("") == before

    play_octavia(tmp_path, story)


def test_flavor_names_are_unique(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        names = Names("flavor")
        profile = (await names.make_profile(place))["id"]
        one, two = [await names.make(place, profile, name=name) for name in ("one", "two")]
        words = "A flavor of two already exists."
        where = f"flavors/{one['id']}"
        assert await error_of(place, "PUT", where, {"flavor": {"name": "two"}}) == (409, words)
        await place.call_ok("PUT", f"{ROOT}/{where}", {"flavor": {"name": "one"}})
        await place.call_ok("PUT", f"{ROOT}/{where}", {"flavor": {"name": "three"}})
        await place.call_ok("PUT", f"{ROOT}/flavors/{two['id']}", {"flavor": {"name": "one"}})

    play_octavia(tmp_path, story)


async def test_two_servers_keep_names_unique_and_objects_in_use(tmp_path: Path, names: Names):
    """The second server has not yet read the first server's write: a name stays unique, and an object in use is
    kept."""

    async with AsyncExitStack() as stack:
        one, two = [
            await stack.enter_async_context(in_process_server(octavia.make_front_end, tmp_path, "")) for _ in range(2)
        ]
        two.ids = count(10**6)
        await one.model.write(lambda _: Changes(puts=(network(),)))
        profile = (await names.make_profile(one))["id"]
        await two.model.catch_up()
        made = await names.make(one, profile)
        body = {names.root: {"name": "gold", names.profile_id: profile}}
        assert (await error_of(two, "POST", names.path, body))[0] == 409
        attribute = "flavor_id" if names.root == "flavor" else names.root
        await create(one, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET, **{attribute: names.key(made)})
        assert (await error_of(two, "DELETE", f"{names.path}/{names.key(made)}"))[0] == 409
        other = await names.make(one, profile, name="silver")
        await two.model.catch_up()
        await one.call_ok("DELETE", f"{ROOT}/{names.path}/{names.key(other)}")
        lb = {"vip_subnet_id": SUBNET, attribute: names.key(other)}
        assert (await error_of(two, "POST", "loadbalancers", {"loadbalancer": lb}))[0] == 400


def test_flavor_and_zone_in_use_by_a_load_balancer_cannot_be_deleted(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        chosen: dict[str, str] = {}
        for names in map(Names, FAMILIES):
            made = await names.make(place, (await names.make_profile(place))["id"])
            chosen["flavor_id" if names.root == "flavor" else names.root] = names.key(made)
        balancer = await create(place, "loadbalancers", "loadbalancer", vip_subnet_id=SUBNET, **chosen)
        assert {name: balancer[name] for name in chosen} == chosen
        assert balancer["provider"] == "ovn"
        found = await place.call_ok("GET", f"{ROOT}/loadbalancers?flavor_id={chosen['flavor_id']}&fields=id")
        assert found["loadbalancers"] == [{"id": balancer["id"]}]
        for attribute, value in chosen.items():
            where = f"loadbalancers/{balancer['id']}"
            status, words = await error_of(place, "PUT", where, {"loadbalancer": {attribute: value}})
            assert (status, words.startswith("Unknown attribute")) == (400, True)
        flavor = f"flavors/{chosen['flavor_id']}"
        words = f"Flavor {chosen['flavor_id']} is in use and cannot be modified."
        assert await error_of(place, "DELETE", flavor) == (409, words)
        words = "Availability Zone gold is in use and cannot be modified."
        assert await error_of(place, "DELETE", "availabilityzones/gold") == (409, words)
        await place.call_ok("DELETE", f"{ROOT}/loadbalancers/{balancer['id']}")
        for path, root in ((flavor, "flavor"), ("availabilityzones/gold", "availability_zone")):
            await place.call_ok("PUT", f"{ROOT}/{path}", {root: {"enabled": False}})
        for attribute, words in (("flavor_id", "flavor"), ("availability_zone", "availability_zone")):
            body = {"loadbalancer": {"vip_subnet_id": SUBNET, attribute: chosen[attribute]}}
            refusal = f"The selected {words} is not allowed in this deployment: {chosen[attribute]}"
            assert await error_of(place, "POST", "loadbalancers", body) == (400, refusal)
        for path in (flavor, "availabilityzones/gold"):
            await place.call_ok("DELETE", f"{ROOT}/{path}")
        body = {"loadbalancer": {"vip_subnet_id": SUBNET, "availability_zone": "gold"}}
        refusal = "Validation failure: Invalid availability zone."
        assert await error_of(place, "POST", "loadbalancers", body) == (400, refusal)

    play_octavia(tmp_path, story)


def test_provider_descriptions_contain_no_comma_or_colon():
    """Descriptions of providers have no comma and no colon, the separators of provider lists in Octavia's
    configuration."""
    assert not [provider for provider in IMPLEMENTATIONS.values() if set(provider.description) & set(",:")]


def test_openapi_document_lists_the_capabilities_of_each_provider(ovn: OctaviaFrontEnd):
    described = ovn.run(ovn.server.call("GET", "/openapi.json")).json()["paths"]["/v2.0/lbaas/providers"]["get"]
    of_fairlead, of_ovn = described["description"].split("\n\nThe provider `ovn`")
    assert "`fairlead` can, in this deployment:\n\n* protocol of listeners: HTTPS, SCTP, TCP, UDP\n" in of_fairlead
    assert "* options: none" in of_ovn
    several = replace(ovn.server.services, providers=parse_names("a=fairlead,b=ovn", "a"))
    (told, *_) = provider_routes(several)
    of_all, of_switch = str(told.endpoint.__doc__).split("\n\nThe provider `b`")
    assert ("TERMINATED_HTTPS" in of_all, "insert_headers" in of_all, "L7 policies" in of_switch) == (True, True, False)


def test_flavor_selects_its_provider_and_is_checked_against_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = providers.Provider(
        description="another", dataplanes=IMPLEMENTATIONS["ovn"].dataplanes, flavor_capabilities={"size": "How large."}
    )
    monkeypatch.setitem(IMPLEMENTATIONS, "other", other)  # type: ignore[arg-type]
    monkeypatch.setitem(providers.DEFAULT.implementations, "other", "other")  # type: ignore[arg-type]

    async def story(place: InProcessServer) -> None:
        names = Names("flavor")
        profile = await names.make_profile(place, provider_name="other", flavor_data='{"size": 1}')
        flavor = (await names.make(place, profile["id"]))["id"]
        assert await place.call_ok("GET", f"{ROOT}/providers/other/flavor_capabilities") == {
            "flavor_capabilities": [{"name": "size", "description": "How large."}]
        }
        found = await place.call_ok("GET", f"{ROOT}/providers/other/flavor_capabilities?name=none")
        assert found == {"flavor_capabilities": []}
        lb = {"vip_subnet_id": SUBNET, "flavor_id": flavor}
        refusal = (400, f"Flavor '{flavor}' is not compatible with provider 'ovn'")
        assert await error_of(place, "POST", "loadbalancers", {"loadbalancer": {**lb, "provider": "ovn"}}) == refusal
        assert (await create(place, "loadbalancers", "loadbalancer", **lb))["provider"] == "other"
        monkeypatch.setitem(IMPLEMENTATIONS, "other", replace(other, flavor_capabilities={}))  # type: ignore[arg-type]
        words = "Provider 'other' does not support a requested option: flavor_data size"
        assert await error_of(place, "POST", "loadbalancers", {"loadbalancer": lb}) == (501, words)
        monkeypatch.setitem(IMPLEMENTATIONS, "other", other)  # type: ignore[arg-type]
        zones = Names("availability_zone")
        await zones.make(place, (await zones.make_profile(place))["id"])
        refusal = (400, "Availability zone 'gold' is not compatible with provider 'other'")
        body = {"loadbalancer": {**lb, "availability_zone": "gold"}}
        assert await error_of(place, "POST", "loadbalancers", body) == refusal

    play_octavia(tmp_path, story)


def test_two_provider_names_may_share_an_implementation(tmp_path: Path):
    """Two provider names may have one implementation; each load balancer keeps its own, because clients switch features
    by it."""

    async def story(place: InProcessServer) -> None:
        lb = {"vip_subnet_id": SUBNET}
        assert (await create(place, "loadbalancers", "loadbalancer", **lb))["provider"] == "fairlead"
        for name in ("ovn", "fairlead"):
            made = await create(place, "loadbalancers", "loadbalancer", **lb, provider=name)
            assert made["provider"] == name
            body = {"listener": {"loadbalancer_id": made["id"], "protocol": "HTTP", "protocol_port": 80}}
            words = f"Provider '{name}' does not support a requested option: protocol HTTP"
            assert await error_of(place, "POST", "listeners", body) == (501, words)
        zones = Names("availability_zone")
        zone = await zones.make(place, (await zones.make_profile(place))["id"])
        made = await create(place, "loadbalancers", "loadbalancer", **lb, availability_zone=zone["name"])
        assert made["provider"] == "fairlead"
        refusal = (400, "Provider 'amphora' is not enabled.")
        assert (
            await error_of(place, "POST", "loadbalancers", {"loadbalancer": {**lb, "provider": "amphora"}}) == refusal
        )

    play_octavia(tmp_path, story)


def test_availability_zone_restricts_vip_networks(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        zones = Names("availability_zone")
        lb = {"vip_subnet_id": SUBNET, "availability_zone": "gold"}
        refusal = (
            400,
            "Validation failure: Supplied VIP network_id is not allowed by the configuration of this deployment.",
        )
        elsewhere = await zones.make_profile(place, availability_zone_data=f'{{"valid_vip_networks": ["{SUBNET}"]}}')
        await zones.make(place, elsewhere["id"])
        assert await error_of(place, "POST", "loadbalancers", {"loadbalancer": lb}) == refusal
        await place.call_ok("DELETE", f"{ROOT}/availabilityzones/gold")
        here = await zones.make_profile(place, availability_zone_data=f'{{"valid_vip_networks": ["x", "{NET}"]}}')
        await zones.make(place, here["id"])
        made = await create(place, "loadbalancers", "loadbalancer", **lb)
        assert (made["availability_zone"], made["vip_network_id"]) == ("gold", NET)
        body = {"name": "n", "provider_name": "ovn", "availability_zone_data": '{"valid_vip_networks": "x"}'}
        words = "x is not a valid option for availability_zone_data valid_vip_networks; it is a list of ids"
        bad = {"availability_zone_profile": body}
        assert await error_of(place, "POST", "availabilityzoneprofiles", bad) == (400, words)

    play_octavia(tmp_path, story)


def test_providers_are_listed_and_amphorae_are_empty(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        description = IMPLEMENTATIONS["ovn"].description
        assert await place.call_ok("GET", f"{ROOT}/providers") == {
            "providers": [{"name": name, "description": description} for name in ("fairlead", "ovn")]
        }
        found = await place.call_ok("GET", f"{ROOT}/providers?fields=name&name=ovn")
        assert found == {"providers": [{"name": "ovn"}]}
        for root, known in (("flavor_capabilities", []), ("availability_zone_capabilities", ["valid_vip_networks"])):
            found = await place.call_ok("GET", f"{ROOT}/providers/ovn/{root}")
            assert [each["name"] for each in found[root]] == known
            assert await error_of(place, "GET", f"providers/nope/{root}") == (400, "Provider 'nope' is not enabled.")
        assert (await place.call("GET", f"{ROOT}/amphorae")).status_code == 404
        for prefix in ("/v2/octavia", "/v2.0/octavia"):
            empty = {"amphorae": [], "amphorae_links": []}
            assert (await place.call("GET", f"{prefix}/amphorae?status=READY")).json() == empty
            for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/failover"), ("PUT", "/config")):
                answer = await place.call(method, f"{prefix}/amphorae/{UNKNOWN_ID}{path}")
                words = f"Amphora {UNKNOWN_ID} not found."
                assert (answer.status_code, answer.json()["faultstring"]) == (404, words)
            answer = await place.call("GET", f"{prefix}/amphorae/{UNKNOWN_ID}/stats")
            words = f"Amphora stats for {UNKNOWN_ID} not found."
            assert (answer.status_code, answer.json()["faultstring"]) == (404, words)

    play_octavia(tmp_path, story)


def test_catalog_lists_are_sorted_paged_and_limited_to_fields(tmp_path: Path, names: Names):
    async def story(place: InProcessServer) -> None:
        profile = (await names.make_profile(place))["id"]
        made = [await names.make(place, profile, name=name, description=f"d{name}") for name in "cab"]
        key = {"flavor": "id"}.get(names.root, "name")
        list_path = f"{ROOT}/{names.path}"

        async def shown(query: str) -> list[str]:
            return [item["name"] for item in (await place.call_ok("GET", f"{list_path}?{query}"))[f"{names.root}s"]]

        assert await shown("") == [item["name"] for item in sorted(made, key=lambda item: item[key])]
        assert await shown("sort=name:desc") == ["c", "b", "a"]
        assert await shown("sort_key=description&sort_dir=asc") == ["a", "b", "c"]
        marker = next(names.key(item) for item in made if item["name"] == "b")
        assert await shown(f"sort=name&marker={marker}") == ["c"]
        assert await shown(f"sort=name&marker={marker}&page_reverse=True") == ["a"]
        assert await shown("name=a&name=b&sort=name&limit=1") == ["a"]
        assert (await error_of(place, "GET", f"{names.path}?colour=red"))[0] == 400
        assert (await error_of(place, "GET", f"{names.path}?sort=colour"))[0] == 400
        page = await place.call_ok("GET", f"{list_path}?sort=name&limit=1&fields={key}")
        assert len(page[f"{names.root}s"][0]) == 1
        assert page[f"{names.root}s_links"][0]["rel"] == "next"

    play_octavia(tmp_path, story)


def test_pages_of_zones_end_with_an_empty_page(tmp_path: Path):
    """The last page of zones is an empty one: without a link, openstacksdk continues from the last id, and zones have
    none, so it would restart forever."""

    async def story(place: InProcessServer) -> None:
        names = Names("availability_zone")
        profile = (await names.make_profile(place))["id"]
        for name in ("a", "b", "c"):
            await names.make(place, profile, name=name)
        path, pages = f"{ROOT}/{names.path}?limit=2&fields=name", []
        while path:
            page = await place.call_ok("GET", path)
            pages.append([item["name"] for item in page["availability_zones"]])
            path = next((each["href"] for each in page["availability_zones_links"] if each["rel"] == "next"), "")
        assert pages == [["a", "b"], ["c"], []]
        whole = await place.call_ok("GET", f"{ROOT}/{names.path}")
        assert (len(whole["availability_zones"]), whole["availability_zones_links"]) == (3, [])

    play_octavia(tmp_path, story)


def test_flavors_and_profiles_are_active_without_a_dataplane(tmp_path: Path):
    """Documents without rows mark no owner and call no driver, and a resync finds no difference."""

    async def story(place: InProcessServer) -> None:
        compiled = place.reconciler.statistics.compiled
        for names in map(Names, FAMILIES):
            await names.make(place, (await names.make_profile(place))["id"])
        await place.call("PUT", f"{ROOT}/quotas/p", {"quota": {"pool": 1}})
        assert (len(place.reconciler), place.reconciler.statistics.compiled) == (0, compiled)
        assert await place.reconciler.plan() == {}
        assert await place.reconciler.resync() == 0
        snapshot = place.model.snapshot
        for owner in owners_with_rows(snapshot):
            status = derive_provisioning_status(snapshot.generations[owner], place.reconciler.applied(owner))
            assert status is ProvisioningStatus.ACTIVE
        place.caller = caller("p", "reader")
        assert len((await place.call_ok("GET", f"{ROOT}/flavors"))["flavors"]) == 1
        assert (await error_of(place, "GET", "flavorprofiles"))[0] == 403

    play_octavia(tmp_path, story)
