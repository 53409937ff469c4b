"""Hosts on one machine, each with a private copy-on-write view of the machine's files, its own processes and network.

Ending a host is a power failure: connections are not closed, and its disk is lost.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import fairlead
from harness.package.archives import COMMAND_TIMEOUT, ROOT, run_ok
from harness.waiting import wait_until

SOURCE, PACKAGES, PYTHON = "/opt/fairlead/source", "/opt/fairlead/packages", "/opt/python"
"""Folders of a host: the product, its requirements, and a Python other than the system's."""
SYSTEM = (Path("/usr"), Path("/usr/local"))
"""Prefixes of the system's Python, which every host has anyway."""
SETUP_SCRIPT = """
set -e
umask 022
base=$1 name=$2 python=$3 program=$4
shift 4
mount --make-rprivate /
mkdir -p "$base" && mount -t tmpfs -o mode=755 host "$base" && cd "$base"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work host root
mount -t proc proc root/proc
mount --rbind /dev root/dev
for each in run tmp var/tmp var/log; do mount -t tmpfs -o mode=1777 host root/$each; done
chmod 755 root/run root/var/log
mkdir root/run/lock
while [ $# -gt 0 ]; do mkdir -p "root$2" && mount --bind "$1" "root$2" && shift 2; done
hostname "$name"
ip link set lo up
exec chroot root "$python" -c "$program"
"""
"""Script that starts a host.

Arguments: the folder of the host, its name, its Python, and the program of its first process; then pairs of a folder of
this machine and its path in the host. A bind mount is readable to every user of the host, wherever the folder is here:
a checkout or a Python may be below /tmp, which the host hides, or below a private home directory.
"""
REAPER_PROGRAM = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("begun", flush=True)
while True:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        signal.sigwait({signal.SIGCHLD})
"""
FAIRLEAD = f"""#!/bin/sh
export PYTHONPATH={SOURCE}:{PACKAGES} LD_LIBRARY_PATH={PYTHON}/lib
exec {{python}} -m fairlead.cli.main "$@"
"""
SYSTEMCTL = "/usr/local/lib/systemctl.py"


def _interpreter() -> Path:
    """Path of this Python in a host."""
    found, prefix = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    return found if prefix in SYSTEM else Path(PYTHON, found.relative_to(prefix))


def _folders() -> Mapping[Path, str]:
    """Folders of this machine that Fairlead needs, and their paths in a host."""
    prefix = Path(sys.base_prefix).resolve()
    needed = {Path(fairlead.__file__).resolve().parents[1]: SOURCE, Path(sysconfig.get_path("purelib")): PACKAGES}
    return needed if prefix in SYSTEM else {**needed, prefix: PYTHON}


class PackageHost:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        folders = [word for here, there in _folders().items() for word in (str(here), there)]
        words = [str(folder / name), name, str(_interpreter()), REAPER_PROGRAM, *folders]
        apart = ("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child")
        self._outer = subprocess.Popen([*apart, "sh", "-c", SETUP_SCRIPT, "-", *words], stdout=subprocess.PIPE, cwd="/")
        assert self._outer.stdout is not None
        assert self._outer.stdout.readline() == b"begun\n"
        outer = self._outer.pid
        [self.pid] = map(int, Path(f"/proc/{outer}/task/{outer}/children").read_text().split())

    def _inside(self) -> list[str]:
        return [
            "nsenter",
            f"--target={self.pid}",
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--root",
            "env",
            "-C",
            "/",
        ]

    def run_script(self, script: str) -> str:
        """Output of a script; each of its commands must succeed."""
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        ended = subprocess.run(
            [*self._inside(), "sh", "-e", "-x", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT,
        )
        assert ended.returncode == 0, f"{self.name}: {script}\n{ended.stdout}{ended.stderr}\n{self.logs()}"
        return ended.stdout

    def logs(self) -> str:
        words = [*self._inside(), "sh", "-c", "tail -n 15 /var/log/unit-*.log /var/log/ovn/*.log"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout[-12000:]

    def write_file(self, path: str, text: str, mode: int) -> None:
        words = [*self._inside(), "sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode:o} {path}"]
        subprocess.run(words, input=text, text=True, check=True)

    def copy(self, folder: Path, to: str) -> None:
        """Copy the content of a folder, with its modes."""
        archive = subprocess.run(["tar", "-C", folder, "-c", "."], capture_output=True, check=True).stdout
        inside = f"rm -rf {to} && mkdir -p {to} && tar -C {to} -x --no-same-owner"
        subprocess.run([*self._inside(), "sh", "-c", inside], input=archive, check=True)

    def install(self) -> None:
        """Install the files that a package would, with a replacement of systemctl."""
        python = _interpreter()
        self.write_file("/usr/bin/fairlead", FAIRLEAD.format(python=python), 0o755)
        self.write_file(SYSTEMCTL, Path(__file__).with_name("systemctl.py").read_text(), 0o644)
        self.write_file("/usr/local/sbin/systemctl", f'#!/bin/sh\nexec {python} {SYSTEMCTL} "$@"\n', 0o755)
        self.copy(ROOT / "packaging" / "systemd", "/opt/fairlead/share/fairlead/systemd")

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)
        self._outer.wait()
        if self._outer.stdout is not None:
            self._outer.stdout.close()


class HostNetwork:
    """The hosts' common network, in a network namespace of its own, with the operator in it."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        wait_until(
            lambda: os.readlink(f"/proc/{self._process.pid}/ns/net"),
            is_enough=lambda found: found != os.readlink("/proc/self/ns/net"),
        )
        self.inside = ("nsenter", f"--target={self._process.pid}", "--net")
        self._ip("link", "set", "lo", "up")
        self._ip("link", "add", "wire", "type", "bridge")
        self._ip("address", "add", address, "dev", "wire", "nodad")
        self._ip("link", "set", "wire", "up")

    def _ip(self, *words: str) -> None:
        run_ok([*self.inside, "ip", *words])

    def plug(self, host: PackageHost, address: str) -> None:
        """Plug in a host. The interface disappears with the host."""
        with suppress(AssertionError):
            self._ip("link", "delete", host.name)
        self._ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        self._ip("link", "set", host.name, "master", "wire", "up")
        host.run_script(f"ip address add {address} dev eth0 nodad; ip link set eth0 up")

    def run_script(self, script: str, folder: Path) -> str:
        return run_ok([*self.inside, "sh", "-e", "-c", script], cwd=folder)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
