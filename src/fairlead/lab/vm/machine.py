"""A machine of QEMU that runs one command on another kernel and then ends.

KVM is tried by booting with it: a device /dev/kvm that is there may still not work, inside a virtual machine for
example. Where it does not, the processor is emulated, ten times slower.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO

from fairlead.lab.errors import LabError, MissingTools
from fairlead.lab.vm import initramfs
from fairlead.lab.vm.initramfs import BOOTED_LINE, JOB_DIRECTORY, JOB_SHARE, MODULE_SHARE, PROBE_PARAMETER, ROOT_SHARE
from fairlead.lab.vm.kernels import KernelTree

QEMU = "qemu-system-x86_64"
PROBE_TIMEOUT = 60.0  # seconds; with KVM the guest is up and down again in two
GUEST_MODULES = (
    *("openvswitch", "geneve", "vport_geneve", "veth", "bridge", "8021q", "vrf", "tun", "ipip", "ip6_tunnel"),
    *("nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nf_tables", "nft_ct", "nft_nat", "nft_hash", "sctp"),
)
"""Modules that programs of the lab take for granted; those that a kernel lacks or has built in are passed over."""
SCRIPT = """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
hostname fairlead-vm
ip link set lo up
for module in {modules}; do modprobe -q $module; done
sysctl -qw kernel.panic=-1 vm.overcommit_memory=1
cd {folder}
{command} </dev/hvc0 >/dev/hvc0 2>&1
echo $? >{job}/code
sync
echo o >/proc/sysrq-trigger
while :; do sleep 1; done
"""


class Accelerator(StrEnum):
    KVM = "kvm"
    TCG = "tcg"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualMachine:
    """What the guest is made of."""

    tree: KernelTree
    accelerator: Accelerator
    memory_mib: int = 4096

    @property
    def processors(self) -> int:
        """Two; of emulated ones a single one, because processors of a guest that wait for each other on a busy machine
        were seen to take a third more time than one alone."""
        return 2 if self.accelerator is Accelerator.KVM else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A command of the guest, and where it runs."""

    argv: Sequence[str]
    folder: Path
    """Where it runs; the path is the same on both sides."""
    environment: Mapping[str, str] = field(default_factory=dict)
    shared: Path | None = None
    """A folder of this machine that the guest may write to, at `initramfs.JOB_DIRECTORY`; None is one that goes with
    the job."""
    terminal: bool = False
    """Whether the command has a terminal of its own, by which a person talks to it."""


def choose_accelerator(tree: KernelTree) -> Accelerator:
    """Boot with KVM, and take it if the guest runs."""
    _require_qemu()
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Accelerator.TCG
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "initramfs"
        initramfs.write(tree, image)
        machine = VirtualMachine(tree=tree, accelerator=Accelerator.KVM, memory_mib=512)
        argv = [*_hardware_options(machine, image, PROBE_PARAMETER), "-serial", "stdio"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            return Accelerator.TCG
    return Accelerator.KVM if done.returncode == 0 and BOOTED_LINE.encode() in done.stdout else Accelerator.TCG


def run_job(machine: VirtualMachine, job: Job, output: IO[bytes] | None = None) -> int:
    """Boot, run the command with its input and output on ours (or its output in a file), and give its exit code.

    Raises LabError if the guest ended without one; its kernel's messages are in the error.
    """
    _require_qemu()
    with _shared_folder(job) as folder, tempfile.TemporaryDirectory() as own:
        image, console = Path(own) / "initramfs", folder / "console"
        initramfs.write(machine.tree, image)
        (folder / "code").unlink(missing_ok=True)
        (folder / "init").write_text(_script(job))
        done = subprocess.run(
            [*_hardware_options(machine, image), *_device_options(machine, folder, console)],
            stdin=None if job.terminal else subprocess.DEVNULL,
            stdout=output,
            check=False,
        )
        code = _read(folder / "code").strip()
        if done.returncode != 0 or not code.isdigit():
            said = "\n".join(_read(console).splitlines()[-20:])
            raise LabError(
                f"the virtual machine stopped without an exit code (QEMU: {done.returncode}); its console:\n{said}"
            )
        return int(code)


def _require_qemu() -> None:
    if shutil.which(QEMU) is None:
        raise MissingTools([QEMU], ["qemu-system-x86"])


@contextmanager
def _shared_folder(job: Job) -> Iterator[Path]:
    if job.shared is not None:
        job.shared.mkdir(parents=True, exist_ok=True)
        yield job.shared
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _script(job: Job) -> str:
    words = [f"{name}={value}" for name, value in job.environment.items()]
    argv = shlex.join(["env", *words, *job.argv])
    command = f"setsid -c {argv}" if job.terminal else argv
    return SCRIPT.format(
        modules=" ".join(GUEST_MODULES), folder=shlex.quote(str(job.folder)), command=command, job=JOB_DIRECTORY
    )


def _hardware_options(machine: VirtualMachine, image: Path, *words: str) -> list[str]:
    """Processors, memory and kernel. `words` go to the kernel's command line."""
    said = ("console=ttyS0", "quiet", "panic=-1", "random.trust_cpu=on", "mitigations=off", "tsc=reliable", *words)
    model = "host" if machine.accelerator is Accelerator.KVM else "max"
    return [
        *(QEMU, "-accel", machine.accelerator.value, "-cpu", model, "-smp", str(machine.processors)),
        *("-m", f"{machine.memory_mib}M", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(machine.tree.image), "-initrd", str(image), "-append", " ".join(said)),
    ]


def _device_options(machine: VirtualMachine, folder: Path, console: Path) -> list[str]:
    """This machine's files, the kernel's messages in a file, and the command's input and output on ours."""
    shares = {
        ROOT_SHARE: ("/", ",readonly=on"),
        MODULE_SHARE: (str(machine.tree.modules), ",readonly=on"),
        JOB_SHARE: (str(folder), ""),
    }
    words = []
    for tag, (path, how) in shares.items():
        words += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{how}"]
    return [
        *words,
        *("-chardev", f"file,id=messages,path={console}", "-serial", "chardev:messages"),
        *("-chardev", "stdio,id=terminal,signal=off", "-device", "virtio-serial-pci"),
        *("-device", "virtconsole,chardev=terminal", "-device", "virtio-rng-pci"),
    ]


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
