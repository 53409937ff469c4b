"""SIGHUP on a real server whose store is an etcd with users: it continues with the new password."""

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.certificates import Authority, key_pem
from harness.etcd import etcd_cluster
from harness.lab.servers import NETWORKS, serving
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.slow

NOWHERE = SimpleNamespace(northbound="unix:/nonexistent/ovnnb.sock")
ROOT = "--user=root:s3cret-of-root"


def test_sighup_applies_the_new_etcd_password(tmp_path: Path):
    authority = Authority()
    member = authority.issue("member", "127.0.0.1")
    files = {"ca": authority.pem, "member": member.pem, "member.key": key_pem(member.key)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("s3cret-of-old")
    options = (f"--cert-file={tmp_path}/member", f"--key-file={tmp_path}/member.key")
    with etcd_cluster(*options, tls=(f"--cacert={tmp_path}/ca",)) as etcd:
        for line in ("user add root:s3cret-of-root", "user grant-role root root", "user add fl:s3cret-of-old"):
            etcd.ctl(*line.split())
        for line in ("role add fl", "role grant-permission fl readwrite --prefix=true ours/", "user grant-role fl fl"):
            etcd.ctl(*line.split())
        etcd.ctl("auth", "enable")
        store = {"URL": f"{etcd.url}/ours", "CA": f"{tmp_path}/ca", "USER": "fl", "PASSWORD_FILE": str(password)}
        with serving(NOWHERE, tmp_path, **{f"FAIRLEAD_STORE_{name}": value for name, value in store.items()}) as server:
            server.create(NETWORKS, "network", name="before")
            etcd.ctl(ROOT, "user", "passwd", "--interactive=false", "fl", given="s3cret-of-new")
            made = {"network": {"name": "after"}}
            wait_equal(lambda: server.client.post(NETWORKS, json=made).status_code, 503)
            server.process.send_signal(signal.SIGHUP)  # too early
            wait_until(lambda: "the previous passwords and certificates stay in use" in server.log.read_text())
            password.write_text("s3cret-of-new")
            server.process.send_signal(signal.SIGHUP)
            wait_equal(lambda: server.client.post(NETWORKS, json=made).status_code, 201)
