"""Run Octavia's functional API tests against a Fairlead server, and print a line of JSON for each: [name, outcome,
reason].

A program of its own, in the environment that has Octavia (`harness.conformance.functional_server` is the server). The
tests are those of the installed package, unmodified, and call Octavia's API as an application in their process, with a
database and drivers that they reach into. Here

* `app` sends each request to the server over HTTP;
* statuses that a test sets become requests: all at rest is "ACTIVE", a deletion is "DELETED";
* a network, subnet or port that a request names is made on the server first, if Octavia's network driver has it: the
  one that does nothing and has everything, or what the test put in its place;
* the caller is the one of Octavia's context, also where the test put another in its place;
* a full quota is a quota of 0;
* of the statuses that a test has set and then compares, provisioning statuses count: operating statuses are what health
  and switches make of them, and nobody can set them over HTTP.

A test that does anything else below the API is skipped with the reason. Arguments: the server's address, a module,
the tests of it that are left out.
"""

import json
import sys
import traceback
import types
import unittest
import uuid
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Any
from unittest import mock

import fixtures
import requests

PACKAGE = "octavia.tests.functional.api.v2"
DATABASE = "reads or writes Octavia's database"
STATUS = "sets the status of one object in Octavia's database"
PATCHED_TARGETS = (
    "oslo_context.context.RequestContext.from_environ",
    "oslo_context.context.RequestContext.to_policy_values",
    "octavia.common.tls_utils.cert_parser.load_certificates_data",
    "octavia.common.validate.qos_policy_exists",
    "octavia.common.validate.subnet_exists",
    "octavia.certificates.manager.barbican.BarbicanCertManager",
    *(
        f"octavia.network.drivers.noop_driver.driver.NoopManager.get_{name}"
        for name in ("network", "subnet", "port", "qos_policy")
    ),
)
"""What a test may replace: this program asks for it, or the answer does not depend on it."""


class BaseTestCase(fixtures.TestWithFixtures):
    """In place of oslotest's, of which the tests need no more."""


def _patch_used(real: Callable[..., Any]) -> Callable[..., Any]:
    """`mock.patch` that skips a test which replaces a part of Octavia that is not in use here."""

    def patch(target: str, *arguments: Any, **options: Any) -> Any:
        made = real(target, *arguments, **options)
        broken = target.endswith("load_certificates_data") and isinstance(options.get("side_effect"), Exception)
        if target not in PATCHED_TARGETS or broken:
            made.getter = lambda: _skip(f"replaces {target}")
        return made

    vars(patch).update(vars(real))
    return patch


def _skip(reason: str) -> Any:
    raise unittest.SkipTest(reason)


class UnusedSession:
    """Database session that refuses everything but a commit, because nothing is written before it."""

    def commit(self) -> None:
        """Commit no change."""

    def __getattr__(self, name: str) -> Any:
        return _skip(DATABASE)


# Octavia's tests import these; `mock.patch` decorates as they are imported.
sys.modules["oslotest"] = types.ModuleType("oslotest")
sys.modules["oslotest.base"] = types.ModuleType("oslotest.base")
sys.modules["oslotest.base"].BaseTestCase = BaseTestCase  # type: ignore[attr-defined]
sys.modules["oslotest"].base = sys.modules["oslotest.base"]  # type: ignore[attr-defined]
mock.patch = _patch_used(mock.patch)  # type: ignore[assignment]

from octavia.common import constants, context, data_models, utils, validate  # noqa: E402
from octavia.db import api as db_api  # noqa: E402
from octavia.db import repositories  # noqa: E402
from octavia.network import data_models as network_models  # noqa: E402
from octavia.tests.functional.api.v2 import base  # noqa: E402
from octavia.tests.functional.db import base as db_base  # noqa: E402
from oslo_config import cfg, fixture  # noqa: E402

EQUIVALENT_OPTIONS = {
    ("controller_worker", "network_driver"): ("network_noop_driver",),
    ("api_settings", "auth_strategy"): (constants.NOAUTH, constants.KEYSTONE, constants.TESTING),
    ("api_settings", "default_provider_driver"): ("noop_driver",),
    ("api_settings", "enabled_provider_drivers"): (
        {
            "amphora": "Amp driver.",
            "noop_driver": "NoOp driver.",
            "noop_driver-alt": "NoOp driver alt alisas.",
            "octavia": "Octavia driver.",
        },
    ),
    ("api_settings", "udp_connect_min_interval_health_monitor"): ("3",),
    ("api_settings", "allow_prometheus_listeners"): (True,),
}
"""Octavia's options, and the values of them that are the server's too."""
QUOTAS = {
    data_models.LoadBalancer: "loadbalancer",
    data_models.Listener: "listener",
    data_models.Pool: "pool",
    data_models.Member: "member",
    data_models.HealthMonitor: "healthmonitor",
    data_models.L7Policy: "l7policy",
    data_models.L7Rule: "l7rule",
}

CERTIFICATES = ("sni_container_refs", "default_tls_container_ref", "tls_container_ref", "ca_tls_container_ref")
SECRETS = ("client_ca_tls_container_ref", "client_crl_container_ref", "crl_container_ref")
"""Attributes whose references Octavia's certificate manager reads as a certificate, and as a secret."""


class WebtestResponse:
    """A response by webtest's names."""

    def __init__(self, answer: requests.Response) -> None:
        self.status_int = self.status_code = answer.status_code
        self.status, self.headers = f"{answer.status_code} {answer.reason}", answer.headers
        self.body, self.text = answer.content, answer.text

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    json_body = json

    def __contains__(self, text: str) -> bool:
        return text in self.text


class FunctionalTestServer:
    """The application of the tests: a server of Fairlead."""

    def __init__(self, address: str) -> None:
        self._address, self._session = address, requests.Session()
        self.known_objects: dict[str, str] = {}
        """Id -> path, of what the running test has made."""
        self.world = NamedNetworks(self)
        self.test: Any = None
        """The one that runs."""
        self.limits: dict[str, int] = {}
        """Of projects that have no quota."""
        self._is_started = False

    def control(self, word: str, body: object = None) -> None:
        if not self._is_started:
            self._is_started = True
            self.control("begin", self.limits)
        answer = self._session.put(f"{self._address}/control/{word}", json=body, timeout=60)
        assert answer.status_code == 204, answer.text

    def begin(self, test: Any) -> None:
        self.known_objects, self.world, self.test, self.limits, self._is_started = (
            {},
            NamedNetworks(self),
            test,
            {},
            False,
        )

    def call(self, method: str, path: str, params: object = None, headers: Mapping[str, str] = {}) -> requests.Response:
        if not self._is_started:
            self.control("rest")
        token = {"X-Auth-Token": json.dumps(claims)} if (claims := _context_claims()) else {}
        sent = {"params": params} if method == "GET" else {"json": params}
        url = f"{self._address}/load-balancer{path}"
        return self._session.request(method, url, headers={**token, **headers}, timeout=60, **sent)  # type: ignore[arg-type]

    def get(self, path: str, params: object = None, **more: Any) -> WebtestResponse:
        return self._request("GET", path, params, **more)

    def delete(self, path: str, **more: Any) -> WebtestResponse:
        return self._request("DELETE", path, None, **more)

    def post_json(self, path: str, params: Any, **more: Any) -> WebtestResponse:
        self._prepare(params)
        answer = self._request("POST", path, params, **more)
        if answer.status_int == 201:
            [made] = answer.json.values()
            self.known_objects[made.get("id", "")] = f"{path}/{made.get('id')}"
        return answer

    def put_json(self, path: str, params: Any, **more: Any) -> WebtestResponse:
        self._prepare(params)
        return self._request("PUT", path, params, **more)

    def _prepare(self, body: Any) -> None:
        self.world.create_named_objects(body)
        references = [each for part in _parts(body) for each in _references(part)]
        if references:
            manager = self.test.cert_manager_mock()
            readable = {reference: _is_read(manager, name, reference) for name, reference in references}
            self.control("unreadable", [reference for reference, read in readable.items() if not read])

    def put(self, path: str, **more: Any) -> WebtestResponse:
        return self._request("PUT", path, None, **more)

    def _request(
        self,
        method: str,
        path: str,
        params: object,
        headers: Mapping[str, str] | None = None,
        status: int | None = None,
        expect_errors: bool = False,
    ) -> WebtestResponse:
        answer = self.call(method, path, params, headers or {})
        said = f"{method} {path} {json.dumps(params)} answers {answer.status_code} {answer.text}"
        if not expect_errors and status is not None and answer.status_code != status:
            raise AssertionError(f"{said}, not {status}")
        if status is None and not expect_errors and answer.status_code >= 400:
            raise AssertionError(said)
        return WebtestResponse(answer)


def _context_claims() -> dict[str, Any] | None:
    """The caller's project and roles by Octavia's context; None without authentication."""
    if cfg.CONF.api_settings.auth_strategy == constants.NOAUTH:
        return None
    seen = context.RequestContext.from_environ({})
    values = seen.to_policy_values()
    if not (project := values.get("project_id") or seen.project_id):
        _skip("has a token without a project: authentication refuses that before a request reaches the API")
    roles = [*(values.get("roles") or []), *(["admin"] if values.get("is_admin") else [])]
    return {"project": project, "roles": roles}


class NamedNetworks:
    """Networks, subnets and ports that the running test has named."""

    def __init__(self, server: FunctionalTestServer) -> None:
        self._server = server
        self._networks: dict[str, dict[str, dict[str, str]]] = {}
        """Id -> the subnets of it, by id."""
        self._objects_by_request: dict[str, str] = {}
        """Subnet -> its network."""
        self._ports = set[str]()
        self._of_request = ""
        """The network of subnets for which Octavia's driver has none."""
        self.known: dict[str, Any] = {}
        """Id -> what the test itself made for the driver to return."""

    def create_named_objects(self, body: Any) -> None:
        self._of_request = str(uuid.uuid4())
        ports: list[dict[str, Any]] = []
        for part in _parts(body):
            address = _address(part.get("vip_address") or part.get("ip_address"))
            network, subnet = part.get("vip_network_id"), part.get("vip_subnet_id") or part.get("subnet_id")
            if _is_id(network):
                self._network(network, subnet, address)
            if _is_id(subnet):
                self._subnet(subnet, None, address or _address(part.get("address")))
            if _is_id(part.get("vip_port_id")):
                ports += self._port(part["vip_port_id"], part)
        networks = [{"id": name, "subnets": list(subnets.values())} for name, subnets in self._networks.items()]
        if networks or ports:
            self._server.control("learn", {"networks": networks, "ports": ports})

    def _find(self, kind: str, identity: str) -> Any:
        if identity in self.known:
            return self.known[identity]
        return _asked_driver(getattr(utils.get_network_driver(), f"get_{kind}"), identity)

    def _network(self, network_id: str, subnet_id: Any, address: Any) -> None:
        found = _asked_driver(utils.get_network_driver().get_network, network_id)
        if found is None:
            return
        self._networks.setdefault(network_id, {})
        if found.subnets is None:
            return
        named = [each if isinstance(each, str) else each.id for each in found.subnets]
        if subnet_id is None:
            for each in named:
                self._subnet(each, network_id, address)
        elif _is_id(subnet_id) and (subnet_id in found.subnets or subnet_id in named):
            self._subnet(subnet_id, network_id, address)

    def _subnet(self, subnet_id: str, network_id: str | None, address: Any) -> None:
        if subnet_id in self._objects_by_request:
            return
        if isinstance(validate.subnet_exists, mock.Mock) and _asked_driver(validate.subnet_exists, subnet_id) is None:
            return
        found = self._find("subnet", subnet_id)
        if found is None:
            return
        of = found.network_id if _is_id(found.network_id) else network_id or self._of_request
        version = 6 if getattr(found, "ip_version", None) == 6 else 4
        cidr = self._cidr(found, address, version)
        self._networks.setdefault(of, {})[subnet_id] = {"id": subnet_id, "cidr": cidr}
        self._objects_by_request[subnet_id] = of

    def _cidr(self, found: Any, address: Any, version: int) -> str:
        if isinstance(cidr := getattr(found, "cidr", None), str):
            return cidr
        if address is not None:
            return str(ip_network(f"{address}/{24 if address.version == 4 else 64}", strict=False))
        number = len(self._objects_by_request)
        return f"2001:db8:ffff:{number:x}::/64" if version == 6 else f"10.{number // 250}.{number % 250}.0/24"

    def _port(self, port_id: str, part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """It has the addresses that the request names, unless Octavia's driver has others."""
        found = self._find("port", port_id)
        if found is None or port_id in self._ports:
            return
        more = [each for each in part.get("additional_vips") or () if isinstance(each, Mapping)]
        fixed = [(each.subnet_id, each.ip_address) for each in found.fixed_ips or ()] or [
            (part.get("vip_subnet_id") or str(uuid.uuid4()), part.get("vip_address")),
            *((each.get("subnet_id"), each.get("ip_address")) for each in more),
        ]
        if found.id != port_id or not all(_is_id(of) for of, _ in fixed):
            return
        for of, held in fixed:
            self._subnet(of, found.network_id if _is_id(found.network_id) else None, _address(held))
        network = self._objects_by_request[fixed[0][0]]
        own = {
            of: held or self._tenth_address(of)
            for of, held in reversed(fixed)
            if self._objects_by_request[of] == network
        }
        self._ports.add(port_id)
        yield {
            "id": port_id,
            "network_id": network,
            "mac_address": "02:00:00:{:02x}:{:02x}:{:02x}".format(*uuid.UUID(port_id).bytes[:3]),
            "device_id": found.device_id if isinstance(found.device_id, str) else "",
            "fixed_ips": [{"subnet_id": of, "ip_address": held} for of, held in own.items()],
        }

    def _tenth_address(self, subnet_id: str) -> str:
        return str(ip_network(self._networks[self._objects_by_request[subnet_id]][subnet_id]["cidr"])[10])


def _references(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The secrets that it names, in the order in which Octavia reads them."""
    for name in CERTIFICATES + SECRETS:
        value = part.get(name)
        yield from ((name, each) for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def _is_read(manager: Any, name: str, reference: str) -> bool:
    """Whether the test lets Octavia's certificate manager have it."""
    try:
        found = (manager.get_secret if name in SECRETS else manager.get_cert)(None, reference)
    except StopIteration:  # more calls than Octavia makes
        return True
    except Exception:  # noqa: BLE001 - whichever the test has it raise
        return False
    return not isinstance(found, str) or found.startswith("cert ") or "-----BEGIN" in found


def _parts(body: Any) -> Iterator[Mapping[str, Any]]:
    """The objects in it, of whatever depth."""
    if isinstance(body, Mapping):
        yield body
    for each in body.values() if isinstance(body, Mapping) else body if isinstance(body, list) else ():
        yield from _parts(each)


def _asked_driver(ask: Callable[[str], Any], identity: str) -> Any:
    try:
        return ask(identity)
    except unittest.SkipTest:
        raise
    except Exception:  # noqa: BLE001 - whichever the test has it raise
        return None


def _is_id(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(uuid.UUID(value))
    except ValueError:
        return False


def _address(value: Any) -> Any:
    try:
        return ip_address(value)
    except ValueError:
        return None


def _recording_constructor(real: Callable[..., None], server: FunctionalTestServer) -> Callable[..., None]:
    """The constructor of a class of Octavia's networks. What a test makes itself is known from then on."""

    def make(self: Any, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        if isinstance(sys._getframe(1).f_locals.get("self"), base.BaseAPITest):
            server.world.known[self.id] = self

    return make


OPERATING_STATUSES = {*constants.SUPPORTED_OPERATING_STATUSES}
COMPARED = ("lb", "listener", "pool", "member", "l7policy", "l7rule", "hm")


def _without_operating_statuses(real: Callable[..., None]) -> Callable[..., None]:
    """One of the tests' comparisons of both statuses of an object."""

    def compare(self: Any, *arguments: Any) -> None:
        real_equal = self.assertEqual

        def equal(expected: str, found: str) -> None:
            if not {expected, found} <= OPERATING_STATUSES:
                real_equal(expected, found)

        with mock.patch.object(self, "assertEqual", equal):
            real(self, *arguments)

    return compare


def adapt(server: FunctionalTestServer) -> None:
    """Let the base classes of the tests speak to the server."""
    api, database = base.BaseAPITest, db_base.OctaviaDBTestBase

    def set_up(self: Any, *_: Any) -> None:
        super(database, self).setUp()
        self.session = UnusedSession()
        cfg.CONF([], project="octavia", default_config_files=[])  # the fixture of the test before has reset it
        server.begin(self)

    def set_lb_status(self: Any, lb_id: str, status: str = constants.ACTIVE) -> Any:
        self.set_object_status(self.lb_repo, lb_id, provisioning_status=status)
        return None if status == constants.DELETED else self.get(self.LB_PATH.format(lb_id=lb_id)).json

    def set_object_status(repo: Any, id_: str, provisioning_status: str = constants.ACTIVE, **_: Any) -> None:
        whole = isinstance(repo, repositories.LoadBalancerRepository)
        match provisioning_status:
            case constants.ACTIVE:
                server.control("rest")
            case constants.DELETED:
                server.control("rest")
                cascade = "?cascade=true" if whole else ""
                answer = server.call("DELETE", server.known_objects[id_] + cascade)
                assert answer.status_code == 204, answer.text
                server.control("rest")
            case constants.ERROR if whole:
                server.control("fail")
            case _:
                _skip(STATUS)

    def start_quota_mock(self: Any, object_type: type) -> None:
        answer = server.call(
            "PUT",
            f"/v2/lbaas/quotas/{getattr(self, '_project_id', self.project_id)}",
            {"quota": {QUOTAS[object_type]: 0}},
        )
        assert answer.status_code == 202, answer.text

    real_config = fixture.Config.config

    def config(self: Any, **options: Any) -> None:
        group = options.pop("group", None)
        for name, value in options.items():
            if group == "quotas":
                server.limits[name.removeprefix("default_").removesuffix("_quota")] = value
            elif value not in EQUIVALENT_OPTIONS.get((group, name), ()):
                _skip(f"sets Octavia's option [{group}] {name}")
        real_config(self, group=group, **options)

    fixture.Config.config = config
    for kind in (network_models.Network, network_models.Subnet, network_models.Port):
        kind.__init__ = _recording_constructor(kind.__init__, server)
    database.setUp = set_up
    api._make_app = lambda self: server
    api.set_lb_status, api.start_quota_mock = set_lb_status, start_quota_mock
    api.set_object_status = staticmethod(set_object_status)
    for name in (f"assert_correct_{each}_status" for each in COMPARED):
        setattr(api, name, _without_operating_statuses(getattr(api, name)))
    db_api.get_session = lambda: _skip(DATABASE)


def name_of(test: Any) -> str:
    return str(test.id().removeprefix(f"{PACKAGE}."))


class FunctionalReport(unittest.TestResult):
    def print_outcome(self, test: Any, outcome: str, reason: str = "") -> None:
        print(json.dumps([name_of(test), outcome, reason]), flush=True)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self.print_outcome(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self.print_outcome(test, "skipped", reason)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self.print_outcome(test, "failed", "".join(traceback.format_exception(*err)))

    addError = addFailure  # noqa: N815


def single(suite: Any) -> Iterator[Any]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from single(item)
        else:
            yield item


def main(address: str, module: str, *left_out: str) -> None:
    adapt(FunctionalTestServer(address))
    found = unittest.TestLoader().loadTestsFromName(f"{PACKAGE}.{module}")
    unittest.TestSuite(each for each in single(found) if name_of(each) not in left_out).run(FunctionalReport())


if __name__ == "__main__":
    main(*sys.argv[1:])
