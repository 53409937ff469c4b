"""A real Keystone, and a Fairlead server that trusts it, as processes of this test alone.

user      project    role
fairlead  service    service, for token validation
alice     shop       member
rita      shop       reader
olga      shop       load-balancer_observer
bob       other      member
dora      (domain)   admin of the domain
sam       (system)   reader of the system
admin     admin      admin, also of the system (bootstrap user)
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-keystone"
PYTHON, EMPTY_FOLDER = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "empty"
INSTALLED = ENVIRONMENT / ".installed"
TOKEN_CACHE_SECONDS = 2
"""Seconds for which a Fairlead server of `options` caches a validated token."""
REGION = "RegionOne"
DEFAULT = {"id": "default"}
SYSTEM = {"system": {"all": True}}
ROLES_BY_USER = {
    "fairlead": ("service", "service"),
    "alice": ("shop", "member"),
    "rita": ("shop", "reader"),
    "olga": ("shop", "load-balancer_observer"),
    "bob": ("other", "member"),
}
SERVICE_PATHS = {"network": "network", "load-balancer": "load-balancer"}


def password_of(user: str) -> str:
    return f"{user}'s password"


def in_project(name: str) -> dict[str, Any]:
    return {"project": {"name": name, "domain": DEFAULT}}


@dataclass
class KeystoneServer:
    folder: Path
    url: str
    """URL of the Identity API v3."""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=DEADLINE))
    process: "subprocess.Popen[bytes] | None" = None
    ids: dict[str, str] = field(default_factory=dict)
    """Ids of projects and users by name."""
    roles: dict[str, str] = field(default_factory=dict)
    """Ids of roles by name."""
    admin: str = ""
    """Token of the system's administrator."""

    # the process

    def start(self) -> None:
        environment = {**os.environ, "OS_KEYSTONE_CONFIG_FILES": "keystone.conf"}
        environment.pop("PYTHONPATH", None)
        port = str(httpx.URL(self.url).port)
        program = [PYTHON, "-W", "ignore", "-m", "uvicorn", "serve:app", "--app-dir", Path(__file__).parent]
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*map(str, program), "--port", port, "--log-level", "warning"],
                env=environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        wait_equal(self._status, 200, retry=(httpx.TransportError,))

    def _status(self) -> int:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "output").read_text()
        return self.client.get(self.url).status_code

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE)
            self.process = None

    # requests of administrators

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"X-Auth-Token": self.admin}
        answer = self.client.request(method, self.url + path, json=body, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def create(self, kind: str, name: str, **more: object) -> str:
        made: str = self.call("POST", f"/{kind}s", {kind: {"name": name, **more}})[kind]["id"]
        (self.roles if kind == "role" else self.ids)[name] = made
        return made

    def populate(self) -> None:
        self.admin = self.token("admin", SYSTEM)
        self.roles = {role["name"]: role["id"] for role in self.call("GET", "/roles")["roles"]}
        self.create("role", "load-balancer_observer")
        for project in ("service", "shop", "other"):
            self.create("project", project, domain_id="default")
        for user in (*ROLES_BY_USER, "dora", "sam"):
            self.create("user", user, domain_id="default", password=password_of(user))
        for user, (project, role) in ROLES_BY_USER.items():
            self.grant(f"/projects/{self.ids[project]}", user, role)
        self.grant("/domains/default", "dora", "admin")
        self.grant("/system", "sam", "reader")

    def grant(self, where: str, user: str, role: str) -> None:
        self.call("PUT", f"{where}/users/{self.ids[user]}/roles/{self.roles[role]}")

    def register_fairlead(self, fairlead: str) -> None:
        for kind, door in SERVICE_PATHS.items():
            self.add_to_catalogue(kind, f"{fairlead}/{door}")

    def add_to_catalogue(self, kind: str, url: str) -> None:
        """Add a service to the catalogue, as an operator does."""
        service = self.call("POST", "/services", {"service": {"type": kind, "name": kind}})["service"]["id"]
        endpoint = {"interface": "public", "region_id": REGION, "service_id": service, "url": url}
        self.call("POST", "/endpoints", {"endpoint": endpoint})

    def create_service_user(self, service: str) -> None:
        """Create the user of another service, with the roles admin and service."""
        self.create("user", service, domain_id="default", password=password_of(service))
        self.grant(f"/projects/{self.ids['service']}", service, "admin")
        self.grant(f"/projects/{self.ids['service']}", service, "service")

    # requests of users

    def token(self, user: str, scope: Mapping[str, Any] | None = None) -> str:
        """Token for the user's project, or for another scope; {} requests an unscoped token."""
        who = {"name": user, "domain": DEFAULT, "password": password_of(user)}
        return self.token_by({"methods": ["password"], "password": {"user": who}}, scope, user)

    def token_by(self, identity: object, scope: Mapping[str, Any] | None = None, user: str = "") -> str:
        where = in_project(ROLES_BY_USER[user][0]) if scope is None and user in ROLES_BY_USER else scope
        auth = {"identity": identity, **({"scope": where} if where else {})}
        answer = self.client.post(f"{self.url}/auth/tokens?nocatalog", json={"auth": auth})
        assert answer.status_code == 201, answer.text
        return str(answer.headers["x-subject-token"])

    def revoke(self, token: str) -> None:
        headers = {"X-Auth-Token": self.admin, "X-Subject-Token": token}
        assert self.client.delete(f"{self.url}/auth/tokens", headers=headers).status_code == 204

    def clouds(self) -> str:
        """clouds.yaml with all users. JSON is valid YAML."""
        system = {"sam": {"system_scope": "all"}, "root": {"system_scope": "all"}}
        people = {**{user: project for user, (project, _) in ROLES_BY_USER.items()}, "admin": "admin", **system}
        clouds = {}
        for user, where in people.items():
            name = "admin" if user == "root" else user
            scope = where if isinstance(where, dict) else {"project_name": where, "project_domain_id": "default"}
            auth = {"auth_url": self.url, "username": name, "password": password_of(name), "user_domain_id": "default"}
            clouds[user] = {"auth_type": "password", "auth": {**auth, **scope}, "region_name": REGION}
        path = self.folder / "clouds.yaml"
        path.write_text(json.dumps({"clouds": clouds}))
        return str(path)


@contextmanager
def keystone(folder: Path) -> Iterator[KeystoneServer]:
    """Run a Keystone with all users."""
    here = folder / "keystone"
    shutil.copytree(EMPTY_FOLDER, here)
    cloud = KeystoneServer(here, f"http://127.0.0.1:{free_port()}/v3")
    urls = [word for kind in ("admin", "public", "internal") for word in (f"--bootstrap-{kind}-url", cloud.url)]
    program = [PYTHON, "-W", "ignore", ENVIRONMENT / "bin" / "keystone-manage", "--config-file", "keystone.conf"]
    words = ["bootstrap", "--bootstrap-password", password_of("admin"), "--bootstrap-region-id", REGION, *urls]
    subprocess.run([*map(str, program), *words], cwd=here, check=True, capture_output=True)
    with cloud.client:
        cloud.start()
        try:
            cloud.populate()
            yield cloud
        finally:
            cloud.stop()


def options(cloud: KeystoneServer, folder: Path) -> dict[str, str]:
    """Environment variables of a Fairlead server that trusts this Keystone."""
    path = folder / "fairlead-password"
    path.touch(mode=0o600)
    path.write_text(password_of("fairlead") + "\n")
    return {
        "FAIRLEAD_SERVER_AUTHENTICATION": "keystone",
        "FAIRLEAD_KEYSTONE_URL": cloud.url,
        "FAIRLEAD_KEYSTONE_PASSWORD_FILE": str(path),
        "FAIRLEAD_KEYSTONE_TOKEN_CACHE_TTL": str(TOKEN_CACHE_SECONDS),
    }
