"""End to end: TLS that ends at the proxy of a node, with keys of a folder at the server, and real clients."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from openstack.exceptions import BadRequestException

from fairlead.lab import Lab, agents
from fairlead.lab.errors import LabCommandFailed
from harness.certificates import Authority, SignedCertificate, key_pem
from harness.lab.site import CURL, CreatedBalancer, LabSite, codes, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab]

CA = Authority()
WEB, OTHER, NEW, MEMBER = (CA.issue(each) for each in ("web.example", "other.example", "web.example", "member.example"))
FRIEND, GONE = CA.issue("friend"), CA.issue("gone")
SECURE = 8443
"""The port at which a member ends TLS itself."""
OPTIONS = {
    "FAIRLEAD_HEALTH_PROBER": "agents",
    "FAIRLEAD_PROVIDERS_NAMES": "fairlead=fairlead,ovn=ovn",
    "FAIRLEAD_PROVIDERS_MAX_PROXIES_PER_NETWORK": "1",  # so there is a node that needs no keys
}


def again(vip: str, ca: Path, times: int) -> str:
    return f"for _ in $(seq {times}); do {CURL} --cacert {ca} --connect-to ::{vip}: https://web.example/; done"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "ca.pem").write_text(CA.pem)
    for name, issued in (("friend", FRIEND), ("gone", GONE), ("member", MEMBER), ("named", WEB)):
        (folder / f"{name}.pem").write_text(issued.certificate_and_key)
    return folder


@pytest.fixture(scope="module")
def site(lab: Lab, keys: Path) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_KEYS_DIRECTORY=str(keys), **OPTIONS)
    site.network("alder", "10.0.0.0/24", "fd00:a::/64")
    site.machines("alder", {"oak": "chassis1", "elm": "chassis2"}, serve=[8080])
    site.machines("alder", {"asks": "chassis1", "asks2": "chassis2"})
    for name, content in {
        "web.pem": WEB.certificate_and_key,
        "other.p12": OTHER.bundle,
        "ca.pem": CA.pem,
        "crl.pem": CA.revoke(GONE),
        "unfit.pem": WEB.pem + key_pem(OTHER.key),
        "broken.pem": WEB.certificate_and_key.replace("MI", "M!"),
    }.items():
        put(site, keys, name, content)
    yield site
    for name in ("oak", "elm", "asks", "asks2"):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[None]:
    started = agents.start(site.lab.layout, site.url, agents.settings(renewal=1))
    yield
    for agent in started:
        agent.stop()


def put(site: LabSite, keys: Path, name: str, content: str | bytes) -> None:
    """As an operator renews one: whole, in the place of what was there."""
    project = site.cloud.network.find_network("alder", ignore_missing=False).project_id
    path = keys / project / name
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f".{name}.new")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.chmod(0o600)
    draft.rename(path)


@contextmanager
def secure(
    site: LabSite, port: int = 8080, more: dict[str, object] | None = None, **listener: object
) -> Iterator[CreatedBalancer]:
    """A load balancer that ends TLS at 443 of a VIP of each IP version, before two members."""
    members = [{"address": site.address(each), "protocol_port": port} for each in ("oak", "elm")]
    pool = {"name": "p", "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN", "members": members, **(more or {})}
    said = {"name": "l", "protocol": "TERMINATED_HTTPS", "protocol_port": 443, "default_tls_container_ref": "web.pem"}
    made = site.cloud.load_balancer.create_load_balancer(
        name="secure",
        vip_subnet_id=site.subnet("alder-v4").id,
        additional_vips=[{"subnet_id": site.subnet("alder-v6").id}],
        listeners=[{**said, "default_pool": pool, **listener}],
    )
    try:
        site.settle(made.id)
        yield CreatedBalancer(
            id=made.id, vip=made.vip_address, pool=made.pools[0]["id"], listener=made.listeners[0]["id"]
        )
    finally:
        site.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)


def get(site: LabSite, keys: Path, vip: str, *more: str, client: str = "asks") -> tuple[str, str, str]:
    """The code, the version of HTTP before its dot, and who answered. Raises CommandFailed."""
    host = f"[{vip}]" if ":" in vip else vip
    where = ("--cacert", str(keys / "ca.pem"), "--connect-to", f"::{host}:", "https://web.example/")
    words = ["curl", "-sS", "-m", "15", "-w", "\n%{http_code} %{http_version}", *more, *where]
    *body, last = site.lab.exec(client, words).strip().splitlines()
    code, version = last.split()
    return code, version[0], "".join(body)


def code(site: LabSite, keys: Path, vip: str, *more: str, client: str = "asks") -> str:
    try:
        return get(site, keys, vip, *more, client=client)[0]
    except LabCommandFailed:
        return ""


def serves(site: LabSite, keys: Path, balancer: CreatedBalancer, *more: str) -> None:
    wait_equal(lambda: code(site, keys, balancer.vip, *more), "200")


def shown(site: LabSite, vip: str, name: str) -> str:
    """The certificate that a client is shown who asks for this name, as openssl says it."""
    words = f"openssl s_client -connect {vip}:443 -servername {name} </dev/null 2>/dev/null | openssl x509 -noout"
    return site.lab.exec("asks", ["sh", "-c", f"{words} -subject -serial"])


def folders(site: LabSite) -> dict[str, Path]:
    """Chassis -> where its proxies have their files."""
    names = [node.name for node in site.lab.status().chassis]
    return {each: site.lab.layout.directory / "fairlead" / f"agent-{each}.proxies" for each in names}


def processes(site: LabSite) -> list[str]:
    return [each.read_text().split()[0] for folder in folders(site).values() for each in folder.glob("*/pid")]


def test_tls_is_terminated_for_each_ip_and_http_version(site: LabSite, keys: Path):
    with secure(site) as balancer:
        serves(site, keys, balancer)
        sixth = site.cloud.load_balancer.get_load_balancer(balancer.id).additional_vips[0]["ip_address"]
        for vip in (balancer.vip, sixth):
            for option, version in (("--http1.1", "1"), ("--http2", "2")):
                assert {get(site, keys, vip, option) for _ in range(4)} == {("200", version, w) for w in ("oak", "elm")}
        assert code(site, keys, balancer.vip, client="asks2") == "200"  # by the proxy of another node


def test_sni_selects_the_certificate_of_the_requested_name(site: LabSite, keys: Path):
    with secure(site, sni_container_refs=["other.p12"]) as balancer:
        serves(site, keys, balancer)
        assert "CN = other.example" in shown(site, balancer.vip, "other.example")
        assert "CN = web.example" in shown(site, balancer.vip, "nobody.example")


def test_mandatory_client_authentication_rejects_missing_and_revoked_certs(site: LabSite, keys: Path):
    asked = {"client_ca_tls_container_ref": "ca.pem", "client_crl_container_ref": "crl.pem"}
    with secure(site, client_authentication="MANDATORY", **asked) as balancer:
        serves(site, keys, balancer, "--cert", str(keys / "friend.pem"))
        assert code(site, keys, balancer.vip) == ""
        assert code(site, keys, balancer.vip, "--cert", str(keys / "gone.pem")) == ""


def handshake(site: LabSite, vip: str, *more: str) -> str:
    """What openssl says of one, with the answer to a request; "" if there is none."""
    words = " ".join(("openssl s_client -ign_eof", "-connect", f"{vip}:443", "-servername web.example", *more))
    asked = r"printf 'GET / HTTP/1.1\r\nHost: web.example\r\nConnection: close\r\n\r\n'"
    told = site.lab.exec("asks", ["sh", "-c", f"{asked} | timeout 9 {words} 2>&1 || true"])
    return told if " 200 OK" in told else ""


def test_tls_versions_ciphers_and_alpn_follow_the_listener(site: LabSite, keys: Path):
    fit, unfit = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
    said = {"tls_versions": ["TLSv1.2"], "tls_ciphers": fit, "alpn_protocols": ["http/1.1"]}
    with secure(site, **said) as balancer:
        serves(site, keys, balancer)
        assert f"Cipher is {fit}" in handshake(site, balancer.vip)
        assert handshake(site, balancer.vip, "-tls1_2", "-cipher", f"{unfit}:{fit}")
        for wrong in (("-tls1_3",), ("-tls1_2", "-cipher", unfit), ("-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0")):
            assert not handshake(site, balancer.vip, *wrong)
        assert get(site, keys, balancer.vip, "--http2")[:2] == ("200", "1")
        suite = {"tls_versions": ["TLSv1.3"], "tls_ciphers": "TLS_AES_256_GCM_SHA384", "alpn_protocols": ["h2"]}
        site.cloud.load_balancer.update_listener(balancer.listener, **suite)
        wait_until(lambda: not handshake(site, balancer.vip, "-tls1_2"), "it is another one")
        serves(site, keys, balancer)
        assert get(site, keys, balancer.vip, "--http2")[:2] == ("200", "2")
        offered = site.lab.exec("asks2", ["sh", "-c", SUITE.format(vip=balancer.vip)])
        assert ("Cipher is TLS_AES_256_GCM_SHA384" in offered, "ALPN protocol: h2" in offered) == (True, True)


SUITE = "openssl s_client -connect {vip}:443 -alpn h2,http/1.1 </dev/null 2>&1 || true"


def test_hsts_header_is_sent_with_its_options(site: LabSite, keys: Path):
    said = {"hsts_max_age": 3600, "hsts_include_subdomains": True, "hsts_preload": True}
    with secure(site, **said) as balancer:
        serves(site, keys, balancer)
        for option in ("--http1.1", "--http2"):
            head = get(site, keys, balancer.vip, option, "-D", "-", "-o", "/dev/null")[2]
            assert "strict-transport-security: max-age=3600; includesubdomains; preload" in head.lower()


RULES = {
    "DN": {"type": "SSL_DN_FIELD", "compare_type": "EQUAL_TO", "key": "CN", "value": "friend"},
    "GOOD": {"type": "SSL_VERIFY_RESULT", "compare_type": "EQUAL_TO", "value": "0"},
    "ANY": {"type": "SSL_CONN_HAS_CERT", "compare_type": "EQUAL_TO", "value": "True"},
}


def test_ssl_rules_match_optional_client_certificates(site: LabSite, keys: Path):
    """Who shows none comes in, who shows a revoked one does not."""
    asked = {"client_ca_tls_container_ref": "ca.pem", "client_crl_container_ref": "crl.pem"}
    policies = [
        {"action": "REDIRECT_TO_URL", "redirect_url": f"https://rule.example/{name}", "rules": its}
        for name, its in (("friend", list(RULES.values())), ("some", [RULES["ANY"]]))
    ]
    with secure(site, client_authentication="OPTIONAL", l7policies=policies, **asked) as balancer:
        serves(site, keys, balancer)
        where = {name: leads(site, keys, balancer, name) for name in ("friend", "member", "gone")}
        assert where == {"friend": "https://rule.example/friend", "member": "https://rule.example/some", "gone": None}


def leads(site: LabSite, keys: Path, balancer: CreatedBalancer, name: str) -> str | None:
    """Where a client with this certificate is led to; None if it is not let in."""
    shows = ("--cacert", f"{keys}/ca.pem", "--cert", f"{keys}/{name}.pem", "--connect-to", f"::{balancer.vip}:")
    words = ["curl", "-sS", "-m", "15", "-o", "/dev/null", "-w", "%{redirect_url}", *shows, "https://web.example/"]
    try:
        return site.lab.exec("asks", words)
    except LabCommandFailed:
        return None


@contextmanager
def ending_tls(site: LabSite, keys: Path, name: str = "member") -> Iterator[None]:
    """Both members, at SECURE, with the certificate in this file. Whoever comes has to show one too."""
    asks = f"-Verify 1 -verify_return_error -CAfile {keys}/ca.pem"
    served = f"openssl s_server -quiet -www -accept {SECURE} -cert {keys}/{name}.pem -key {keys}/{name}.pem {asks}"
    commands = [site.lab.command(each, served.split()) for each in ("oak", "elm")]
    running = [subprocess.Popen(each.argv, env=each.full_environment(), stdin=subprocess.DEVNULL) for each in commands]
    try:
        yield
    finally:
        for each in running:
            each.terminate()
            each.wait()


def test_tls_members_need_a_certificate_of_the_ca_and_the_requested_name(site: LabSite, keys: Path):
    """And of the name that the client has asked for."""
    more = {"tls_enabled": True, "ca_tls_container_ref": "ca.pem", "tls_container_ref": "other.p12"}
    with ending_tls(site, keys), secure(site, SECURE, more) as balancer:
        wait_equal(lambda: code(site, keys, balancer.vip), "503")
    with ending_tls(site, keys, "named"), secure(site, SECURE, more) as balancer:
        serves(site, keys, balancer)
        stranger = Authority("stranger")
        put(site, keys, "ca2.pem", stranger.pem)
        site.cloud.load_balancer.update_pool(balancer.pool, ca_tls_container_ref="ca2.pem")
        wait_equal(lambda: code(site, keys, balancer.vip), "503")
        put(site, keys, "ca2.pem", stranger.pem + CA.pem)
        serves(site, keys, balancer)


def test_https_passthrough_terminates_tls_at_the_member(site: LabSite, keys: Path):
    """By a proxy too: the switch has no limits."""
    said = {"protocol": "HTTPS", "connection_limit": 100, "default_tls_container_ref": None}
    shows = ("--cacert", f"{keys}/ca.pem", "--cert", f"{keys}/friend.pem")
    there = (*shows, "https://member.example/", "-o", "/dev/null")
    with ending_tls(site, keys), secure(site, SECURE, {"protocol": "HTTPS"}, **said) as balancer:
        words = ["curl", "-sS", "-m", "15", "-w", "%{http_code}", "--connect-to", f"::{balancer.vip}:", *there]
        wait_equal(lambda: _printed(site, words), "200")


def _printed(site: LabSite, words: list[str]) -> str:
    try:
        return site.lab.exec("asks", words)
    except LabCommandFailed:
        return ""


def test_certificate_renewal_fails_no_request(site: LabSite, keys: Path):
    with secure(site) as balancer, ThreadPoolExecutor(1) as threads:
        serves(site, keys, balancer)
        before, first = shown(site, balancer.vip, "web.example"), processes(site)
        assert f"{WEB.certificate.serial_number:X}" in before
        words = again(balancer.vip, keys / "ca.pem", 100)
        asking = threads.submit(site.lab.exec, "asks", ["sh", "-c", words])
        try:
            put(site, keys, "web.pem", NEW.certificate_and_key)
            new = f"{NEW.certificate.serial_number:X}"
            wait_until(lambda: new in shown(site, balancer.vip, "web.example"), "it is renewed")
            assert codes(asking.result()) == {"200": 100}
            assert processes(site) == first
        finally:
            put(site, keys, "web.pem", WEB.certificate_and_key)


def test_unreadable_certificate_is_reported_and_the_previous_one_is_served(site: LabSite, keys: Path):
    with secure(site) as balancer:
        serves(site, keys, balancer)
        for broken in (WEB.pem, WEB.pem + key_pem(OTHER.key)):
            put(site, keys, "web.pem", broken)
            wait_equal(lambda: unreadable(site), 1)
            assert code(site, keys, balancer.vip) == "200"
            put(site, keys, "web.pem", WEB.certificate_and_key)
            wait_equal(lambda: unreadable(site), 0)
        assert "'web.pem' (certificate): the key does not match" in site.service.log.read_text()


def unreadable(site: LabSite) -> float:
    lines = httpx.get(f"{site.url}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("fairlead_unreadable_keys ")).split()[1])


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("nothing.pem", "has no file of this name"),
        ("unfit.pem", "does not match"),
        ("broken.pem", "the key is invalid"),
        ("../second/its.pem", "must be a file name"),
        ("/etc/ssl/private/its.pem", "must be a file name"),
    ],
)
def test_unusable_certificate_reference_is_rejected_and_nothing_is_written(site: LabSite, reference: str, why: str):
    before = [each.id for each in site.cloud.load_balancer.load_balancers()]
    with (
        pytest.raises(BadRequestException, match=f"Could not retrieve certificate: .*{why}"),
        secure(site, default_tls_container_ref=reference),
    ):
        pass
    assert [each.id for each in site.cloud.load_balancer.load_balancers()] == before


def test_certificate_of_another_project_cannot_be_referenced(site: LabSite, keys: Path):
    """The same reference is a file of its own there, or none."""
    network = site.cloud.network.create_network(name="birch", project_id="second")
    subnet = site.cloud.network.create_subnet(
        name="birch-v4", network_id=network.id, cidr="10.0.0.0/24", ip_version=4, project_id="second"
    )
    said = {"protocol": "TERMINATED_HTTPS", "protocol_port": 443, "default_tls_container_ref": "web.pem"}
    balancers = site.cloud.load_balancer
    made = balancers.create_load_balancer(name="second", vip_subnet_id=subnet.id, project_id="second")
    try:
        with pytest.raises(BadRequestException, match=r"Could not retrieve certificate: .*has no file of this name"):
            balancers.create_listener(load_balancer_id=made.id, **said)
        (keys / "second").mkdir()
        (keys / "second" / "web.pem").symlink_to(next(keys.glob("*/web.pem")))
        with pytest.raises(BadRequestException, match=r"Could not retrieve certificate: .*cannot be opened"):
            balancers.create_listener(load_balancer_id=made.id, **said)
        assert not list(balancers.listeners(load_balancer_id=made.id))
    finally:
        balancers.delete_load_balancer(made.id, cascade=True)


def test_private_keys_are_stored_only_on_the_node_that_serves_the_listener(site: LabSite, keys: Path):
    with secure(site, sni_container_refs=["other.p12"]) as balancer:
        serves(site, keys, balancer)
        having = {name: list(folder.glob("*/secrets/*")) for name, folder in folders(site).items()}
        assert sorted(len(files) for files in having.values()) == [0, 2]
        for file in (each for files in having.values() for each in files):
            assert file.stat().st_mode & 0o777 == 0o600
            assert file.owner() == "haproxy"
        found = {path for path in _files(site.lab.layout.directory) if _has_key(path, WEB) or _has_key(path, OTHER)}
        assert found == {file.resolve() for files in having.values() for file in files}
        assert b"web.pem" in (site.service.folder / "fairlead.db").read_bytes() + _wal(site)
    wait_until(lambda: not _secrets(site), "keys are gone with what named them")


def _files(folder: Path) -> Iterator[Path]:
    """Stores, logs, the slices of agents, and all else that the lab's processes write."""
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (Path(parent, name).resolve() for name in names if Path(parent, name).is_file())


def _has_key(path: Path, issued: SignedCertificate) -> bool:
    line = key_pem(issued.key).splitlines()[1].encode()
    content = path.read_bytes()
    return line in content or json.dumps(line.decode()).encode() in content


def _wal(site: LabSite) -> bytes:
    path = site.service.folder / "fairlead.db-wal"
    return path.read_bytes() if path.exists() else b""


def _secrets(site: LabSite) -> list[Path]:
    return [each for folder in folders(site).values() for each in folder.glob("*/secrets/*")]
