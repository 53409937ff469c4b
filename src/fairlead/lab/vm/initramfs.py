"""What boots the guest: a statically linked shell, the modules that reach this machine's files, and a script.

The archive has the format "newc" of cpio (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst),
without compression.
"""

import lzma
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.lab.errors import LabError, MissingTools
from fairlead.lab.vm.kernels import KernelTree

MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
SHELL = "busybox"
INITRAMFS_FOLDERS = ("bin", "dev", "proc", "sys", "lower", "upper", "root", "modules")
ROOT_SHARE, MODULE_SHARE, JOB_SHARE = "root", "modules", "job"
JOB_DIRECTORY = "/run/fairlead-vm"
"""The folder of this machine that the guest shares with it, as the guest sees it."""
BOOTED_LINE = "fairlead: the guest runs"
"""What the script prints first: an accelerator works if this is seen."""
PROBE_PARAMETER = "fairlead.probe"
"""The word on the kernel's command line with which nothing but that is done."""

INIT = f"""#!/bin/{SHELL} sh
export PATH=/bin
/bin/{SHELL} --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo "{BOOTED_LINE}"
if grep -qw {PROBE_PARAMETER} /proc/cmdline; then poweroff -f; fi
for module in $(cat /modules/order); do insmod /modules/$module || echo "fairlead: module $module is not loaded"; done
share() {{ mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" $1 $2 || echo "fairlead: no share $1"; }}
share {ROOT_SHARE} /lower ro,cache=loose
mount -t tmpfs -o size=75% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root
for folder in dev proc sys; do mount --move /$folder /root/$folder; done
mkdir -p /root/dev/pts /root/dev/shm /root/lib/modules/$(uname -r)
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /root/dev/pts
for folder in dev/shm run tmp var/tmp; do mount -t tmpfs -o mode=1777 tmpfs /root/$folder; done
chmod 755 /root/run
mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
share {MODULE_SHARE} /root/lib/modules/$(uname -r) ro,cache=loose
mkdir -p /root{JOB_DIRECTORY} /root/run/lock
share {JOB_SHARE} /root{JOB_DIRECTORY} cache=none
exec switch_root /root /bin/sh {JOB_DIRECTORY}/init
"""


def write(tree: KernelTree, path: Path) -> None:
    """Make the archive. Raises LabError."""
    if (shell := shutil.which(SHELL)) is None:
        raise MissingTools([SHELL], ["busybox-static"])
    modules = list(_module_closure(tree, MODULES))
    with path.open("wb") as archive:
        for folder in INITRAMFS_FOLDERS:
            archive.write(_entry(folder, stat.S_IFDIR | 0o755))
        archive.write(_entry(f"bin/{SHELL}", stat.S_IFREG | 0o755, Path(shell).read_bytes()))
        archive.write(_entry("init", stat.S_IFREG | 0o755, INIT.encode()))
        names = [f"{number:02}.ko" for number in range(len(modules))]
        archive.write(_entry("modules/order", stat.S_IFREG | 0o644, "\n".join(names).encode()))
        for name, module in zip(names, modules, strict=True):
            archive.write(_entry(f"modules/{name}", stat.S_IFREG | 0o644, _read(module)))
        archive.write(_entry("TRAILER!!!", 0))


def _module_closure(tree: KernelTree, names: Sequence[str]) -> Iterator[Path]:
    """The files of these modules and of those that they need, each after what it needs. Modules that are built into the
    kernel are left out."""
    needs = {}
    for line in (tree.modules / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[_name(file)] = (file, rest.split())
    built_in = {_name(line) for line in (tree.modules / "modules.builtin").read_text().splitlines()}
    given = set[str]()
    for name in (name.replace("-", "_") for name in names):
        if name in built_in:
            continue
        if name not in needs:
            raise LabError(f"kernel {tree.version} has no module {name}")
        file, others = needs[name]
        for each in (*reversed(others), file):  # modprobe loads those on the right first (modules.dep(5))
            if each not in given:
                given.add(each)
                yield tree.modules / each


def _name(file: str) -> str:
    return Path(file).name.partition(".")[0].replace("-", "_")


def _read(module: Path) -> bytes:
    match module.suffix:
        case ".xz":
            return lzma.decompress(module.read_bytes())
        case ".zst":
            if shutil.which("zstd") is None:
                raise MissingTools(["zstd"], ["zstd"])
            return subprocess.run(["zstd", "-dcq", str(module)], capture_output=True, check=True).stdout
        case _:
            return module.read_bytes()


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file or folder: a header of 13 numbers in hexadecimal, the name and the data, each filled up to 4 bytes."""
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
