"""A real Barbican with a real Keystone, as a process of this test alone."""

import base64
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx

from harness.keystone.cloud import KeystoneServer, password_of
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_until

ENVIRONMENT = Path(__file__).parents[3] / ".venv-barbican"
PYTHON, EMPTY_FOLDER = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "empty"
INSTALLED = ENVIRONMENT / ".installed"
KEYSTONE_CONF = """
[keystone_authtoken]
auth_type = password
auth_url = {url}
www_authenticate_uri = {url}
username = barbican
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
service_token_roles_required = true
"""


@dataclass
class Barbican:
    folder: Path
    url: str
    """URL without a version."""
    cloud: KeystoneServer
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=DEADLINE))
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        environment = {**os.environ, "HOME": str(self.folder), "PYTHONWARNINGS": "ignore"}
        environment.pop("PYTHONPATH", None)
        program = [PYTHON, "-m", "uvicorn", "serve:app", "--app-dir", Path(__file__).parent]
        words = ["--port", str(httpx.URL(self.url).port), "--log-level", "warning"]
        with (self.folder / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*map(str, program), *words], env=environment, cwd=self.folder, stdout=output, stderr=output
            )
        wait_until(self._status, is_enough=lambda status: status in (200, 300), retry=(httpx.TransportError,))

    def _status(self) -> int:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "output").read_text()
        return self.client.get(self.url).status_code

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(DEADLINE)
            self.process = None

    def send(self, number: int) -> None:
        """Send a signal, such as SIGSTOP and SIGCONT."""
        assert self.process is not None
        self.process.send_signal(number)

    # requests of users

    def call(self, token: str, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(method, f"{self.url}/v1{path}", json=body, headers={"X-Auth-Token": token})
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def text(self, token: str, content: str, **more: object) -> str:
        """Store a text, as `openstack secret store --payload` does, and return its reference."""
        return self._store(token, {"payload": content, "payload_content_type": "text/plain", **more})

    def binary(self, token: str, content: bytes, **more: object) -> str:
        """Store bytes, as `openstack secret store --payload-content-type application/octet-stream` does."""
        payload = {"payload": base64.b64encode(content).decode(), "payload_content_encoding": "base64"}
        return self._store(token, {**payload, "payload_content_type": "application/octet-stream", **more})

    def _store(self, token: str, body: Mapping[str, object]) -> str:
        made: str = self.call(token, "POST", "/secrets", {"name": "it", **body})["secret_ref"]
        return made

    def container(self, token: str, kind: str = "certificate", **secrets: str) -> str:
        named = [{"name": name, "secret_ref": reference} for name, reference in secrets.items()]
        body = {"name": "it", "type": kind, "secret_refs": named}
        made: str = self.call(token, "POST", "/containers", body)["container_ref"]
        return made

    def expire(self, reference: str) -> None:
        """Expire a secret by moving its expiration into the past."""
        with closing(sqlite3.connect(self.folder / "barbican.sqlite", timeout=DEADLINE)) as database, database:
            command = "UPDATE secrets SET expiration = created_at WHERE id = ? AND expiration IS NOT NULL"
            assert database.execute(command, (reference.rpartition("/")[2],)).rowcount == 1

    def delete(self, token: str, reference: str) -> None:
        self.call(token, "DELETE", reference.partition("/v1")[2])


@contextmanager
def barbican(folder: Path, cloud: KeystoneServer) -> Iterator[Barbican]:
    """Run a Barbican with a service user in Keystone and an entry in its catalogue."""
    here = folder / "barbican"
    shutil.copytree(EMPTY_FOLDER, here)
    cloud.create_service_user("barbican")
    made = Barbican(here, f"http://127.0.0.1:{free_port()}", cloud)
    with (here / "barbican.conf").open("a") as configuration:
        configuration.write(KEYSTONE_CONF.format(url=cloud.url, password=password_of("barbican")))
        configuration.write(f"[DEFAULT]\nhost_href = {made.url}\n")
    cloud.add_to_catalogue("key-manager", made.url)
    with made.client:
        made.start()
        try:
            yield made
        finally:
            made.stop()


def octavia_options(cloud: KeystoneServer, secrets: Barbican, folder: Path) -> dict[str, str]:
    """Environment variables of a Fairlead server that serves an Octavia.

    Octavia's user validates tokens in Keystone and reads Barbican; Octavia calls Fairlead with a password of that user.
    """
    own, users = folder / "own-password", folder / "passwords"
    for each in (own, users):
        each.touch(mode=0o600)
    own.write_text(password_of("octavia"))
    users.write_text(f"octavia:{bcrypt.hashpw(b'plugged in', bcrypt.gensalt(4)).decode()}:service:admin\n")
    return {
        "FAIRLEAD_SERVER_AUTHENTICATION": "keystone",
        "FAIRLEAD_SERVER_PASSWORD_FILE": str(users),
        "FAIRLEAD_KEYSTONE_URL": cloud.url,
        "FAIRLEAD_KEYSTONE_USER": "octavia",
        "FAIRLEAD_KEYSTONE_PASSWORD_FILE": str(own),
        "FAIRLEAD_KEYS_BARBICAN": secrets.url,
        "FAIRLEAD_HEALTH_PROBER": "agents",
        "FAIRLEAD_PROVIDERS_NAMES": "fairlead=fairlead",
    }
