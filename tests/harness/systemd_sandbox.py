"""Starts a program with the restrictions of a systemd unit file, on machines without systemd.

The restrictions are user, capabilities, read-only file system, system call filter and address families
(systemd.exec(5)). Usage, as root:

    python confined.py UNIT[:DROP-IN...] WRITABLE[:WRITABLE...] COMMAND...

Other restrictions of systemd (private /tmp and devices, hidden processes, user namespaces) are not applied.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

MS_REC, MS_SLAVE, MS_BIND = 1 << 14, 1 << 19, 1 << 12
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
CLONE_NEWNS = 0x20000
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
SCMP_ACT_ALLOW, SCMP_ACT_EPERM, SCMP_CMP_EQ = 0x7FFF0000, 0x00050000 | 1, 4
"""Constants of seccomp.h (libseccomp)."""
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
LIBC = ctypes.CDLL(None, use_errno=True)


def read_unit(paths: str) -> dict[str, list[str]]:
    """Values of each option of [Service] in the order of the files, drop-ins last."""
    found: dict[str, list[str]] = {}
    for path in paths.split(":"):
        for line in Path(path).read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, []).append(value)
    return found


def system_calls(filters: Iterable[str]) -> list[str]:
    """Allowed system calls, sorted."""
    allowed = set[str]()
    for each in filters:
        names = {name for word in each.lstrip("~").split() for name in _members(word)}
        allowed = allowed - names if each.startswith("~") else allowed | names
    return sorted(allowed)


def _members(word: str) -> Iterable[str]:
    if not word.startswith("@"):
        return [word]
    told = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True)
    words = [line.strip() for line in told.stdout.splitlines()[1:]]
    return [name for each in words if each and not each.startswith("#") for name in _members(each)]


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount_read_only(writable: Sequence[str]) -> None:
    """Mount everything read-only, except these paths and the kernel's own file systems."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users")]

    def set_attributes(path: str, attributes: "Attributes") -> None:
        size = ctypes.sizeof(attributes)
        _check(LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, ctypes.byref(attributes), size))

    _check(LIBC.unshare(CLONE_NEWNS))
    _check(LIBC.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))
    make_reachable(Path(__file__).parents[2])
    for path in writable:
        _check(LIBC.mount(path.encode(), path.encode(), None, MS_BIND, None))
    set_attributes("/", Attributes(set=MOUNT_ATTR_RDONLY))
    for path in (*writable, "/proc", "/sys", "/dev"):
        set_attributes(path, Attributes(clear=MOUNT_ATTR_RDONLY))


def make_reachable(folder: Path) -> None:
    """Make a folder reachable for every user in this mount namespace: a checkout may be below a folder of root's."""
    closed = [each for each in reversed(folder.parents) if not each.stat().st_mode & 0o001]
    if not closed:
        return
    held = os.open(folder, os.O_PATH)
    _check(LIBC.mount(b"tmpfs", str(closed[0]).encode(), b"tmpfs", 0, b"mode=0755"))
    folder.mkdir(parents=True)
    _check(LIBC.mount(f"/proc/self/fd/{held}".encode(), str(folder).encode(), None, MS_BIND | MS_REC, None))


class SeccompComparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def filter_system_calls(allowed: Iterable[str], families: Iterable[str]) -> None:
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(SCMP_ACT_EPERM))
    for name in allowed:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0 and name != "socket":
            seccomp.seccomp_rule_add_array(context, SCMP_ACT_ALLOW, number, 0, None)
    socket = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        compared = SeccompComparison(0, SCMP_CMP_EQ, FAMILIES[family], 0)
        seccomp.seccomp_rule_add_array(context, SCMP_ACT_ALLOW, socket, 1, ctypes.byref(compared))
    _check(seccomp.seccomp_load(context))


def setpriv(unit: dict[str, list[str]]) -> list[str]:
    """Command prefix that drops privileges. Any user of the unit file is replaced by `nobody`."""
    capabilities = [each for line in unit["CapabilityBoundingSet"] for each in line.split()]
    words = ["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in capabilities)]
    user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if "User" in unit else []
    return ["setpriv", f"--bounding-set={','.join(words)}", "--inh-caps=-all", "--no-new-privs", *user]


def main() -> None:
    if sys.argv[1] == "--inside":
        unit, command = read_unit(sys.argv[2]), sys.argv[3:]
        allowed = sys.stdin.read().split()
        if unit.get("MemoryDenyWriteExecute", ["no"])[-1] == "yes":
            LIBC.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)  # since Linux 6.3; systemd uses a filter
        filter_system_calls(allowed, unit["RestrictAddressFamilies"][-1].split())
        os.execvp(command[0], command)
    path, writable, command = sys.argv[1], sys.argv[2].split(":"), sys.argv[3:]
    unit = read_unit(path)
    os.umask(int(unit["UMask"][-1], 8))
    allowed, heard = system_calls(unit["SystemCallFilter"]), os.memfd_create("calls")
    os.write(heard, "\n".join(allowed).encode())
    os.lseek(heard, 0, os.SEEK_SET)
    os.dup2(heard, 0)
    if unit["ProtectSystem"][-1] == "strict":
        mount_read_only(writable)
    os.environ["TMPDIR"] = writable[0]  # PrivateTmp
    os.execvp("setpriv", [*setpriv(unit), sys.executable, __file__, "--inside", path, *command])


if __name__ == "__main__":
    main()
