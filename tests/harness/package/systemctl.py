"""Replacement of `systemctl` for hosts without systemd: starts a unit's commands as its user, and ends them.

Unit files are used unchanged. Sandboxing options are ignored; tests/lab/test_units.py tests them.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PLACES = (Path("/etc/systemd/system"), Path("/usr/lib/systemd/system"))
RUNNING = Path("/run/units")
FOLDERS = {"StateDirectory": "/var/lib", "RuntimeDirectory": "/run", "LogsDirectory": "/var/log"}
NOTIFY_TIMEOUT = 60.0
POLL_INTERVAL = 0.05


class Unit:
    def __init__(self, name: str) -> None:
        self.name = name.removesuffix(".service")
        paths = [folder / f"{self.name}.service" for folder in PLACES]
        lines = next(path for path in paths if path.exists()).read_text().replace("\\\n", " ").splitlines()
        self._options = [tuple(line.split("=", 1)) for line in lines if "=" in line and not line.startswith("#")]
        self._pid = RUNNING / self.name

    def _all(self, name: str) -> list[str]:
        return [text for key, text in self._options if key == name and text]

    def _one(self, name: str, default: str = "") -> str:
        return next(iter(self._all(name)), default)

    def _environment(self) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"]}
        for text in self._all("Environment"):
            found |= dict(word.split("=", 1) for word in shlex.split(text.replace("%H", os.uname().nodename)))
        for text in self._all("EnvironmentFile"):
            path = Path(text.removeprefix("-").replace("%p", self.name))
            if path.exists():
                read = shlex.split(path.read_text().replace("\\\n", " "), comments=True)
                found |= dict(word.split("=", 1) for word in read)
        return found

    def _expand_command(self, command: str, environment: dict[str, str]) -> Iterator[str]:
        """Words of a command. `$NAME` expands to any number of words (systemd.service(5))."""
        for word in shlex.split(command.lstrip("-@:+!")):
            if word.startswith("$"):
                yield from shlex.split(environment.get(word.strip("${}"), ""))
            else:
                yield word

    def _run(self, command: str, *, wait: bool) -> subprocess.Popen[bytes]:
        environment, user = self._environment(), self._one("User")
        as_user = ["setpriv", f"--reuid={user}", f"--regid={self._one('Group', user)}", "--init-groups"] if user else []
        log = Path("/var/log", f"unit-{self.name}.log").open("ab")  # noqa: SIM115 - the process has it
        words = [*as_user, *self._expand_command(command, environment)]
        process = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        if wait and process.wait() != 0:
            sys.exit(f"{self.name}: {words} ended with {process.returncode}")
        return process

    def is_running(self) -> bool:
        return self._pid.exists() and Path("/proc", self._pid.read_text()).exists()

    def start(self) -> None:
        for name in " ".join(self._all("Wants")).split():
            if name.startswith("ovn-"):
                Unit(name).start()
        if self.is_running():
            return
        user = self._one("User")
        for option, parent in FOLDERS.items():
            for name in self._one(option).split():
                Path(parent, name).mkdir(mode=0o700, exist_ok=True)
                if user:
                    shutil.chown(Path(parent, name), user)
        forks = self._one("Type") in ("forking", "oneshot")
        process = self._run(self._one("ExecStart"), wait=forks)
        pid_file = Path(self._one("PIDFile").replace("%t", "/run"))
        RUNNING.mkdir(exist_ok=True)
        self._pid.write_text(pid_file.read_text().strip() if forks and pid_file.is_file() else str(process.pid))

    def stop(self) -> None:
        for name in " ".join(self._all("Wants")).split():
            if name.startswith("ovn-"):
                Unit(name).stop()
        if not self.is_running():
            return
        if self._all("ExecStop"):
            self._run(self._one("ExecStop"), wait=True)
        pid, until = int(self._pid.read_text()), time.monotonic() + NOTIFY_TIMEOUT
        while Path("/proc", str(pid)).exists() and self._one("Type") != "oneshot":
            number = signal.SIGTERM if time.monotonic() < until else signal.SIGKILL
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
            time.sleep(POLL_INTERVAL)
        self._pid.unlink()


def main() -> None:
    verb, *names = [word for word in sys.argv[1:] if not word.startswith("--")]
    for name in names:
        unit = Unit(name)
        if verb in ("stop", "restart"):
            unit.stop()
        if verb in ("start", "restart", "enable"):  # enable is only used with --now
            unit.start()


if __name__ == "__main__":
    main()
