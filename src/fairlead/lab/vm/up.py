"""`fairlead lab up --vm`: a lab in a virtual machine, and a shell beside it."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.lab.errors import LabError
from fairlead.lab.processes import COMMAND_MODULE
from fairlead.lab.timeouts import FACTOR_VARIABLE
from fairlead.lab.vm import kernels
from fairlead.lab.vm.machine import Accelerator, Job, VirtualMachine, choose_accelerator, run_job

EMULATED_TIMEOUT_FACTOR = 20  # how much longer programs may take where the processor is emulated
SHELL = "bash"


def up(kernel: str, name: str, options: Sequence[str], command: Sequence[str], progress: Callable[[str], None]) -> None:
    """Boot, start the lab with these options of `fairlead lab up`, and run the command, or a shell, until it ends.

    The lab and all that was written end with it. Raises LabError if any of these fails.
    """
    tree = kernels.fetch(kernel, progress)
    accelerator = choose_accelerator(tree)
    slow = (
        ""
        if accelerator is Accelerator.KVM
        else "; KVM is unavailable, so emulation is used, which is ten times slower"
    )
    progress(f"kernel {tree.version}: booting with the files of this machine; writes stay in memory{slow}")
    job = Job(
        argv=("sh", "-c", script(name, options, command)),
        folder=Path.cwd(),
        environment=environment(name, accelerator),
        terminal=not command,
    )
    if code := run_job(VirtualMachine(tree=tree, accelerator=accelerator), job):
        raise LabError(f"the command in the virtual machine returned exit code {code}")


def script(name: str, options: Sequence[str], command: Sequence[str]) -> str:
    """Shell words that start the lab and then run the command."""
    started = shlex.join([sys.executable, "-m", COMMAND_MODULE, "lab", "up", "--name", name, *options])
    if command:
        return f"{started} && exec {shlex.join(command)}"
    lines, columns = shutil.get_terminal_size().lines, shutil.get_terminal_size().columns
    said = "echo 'This shell runs in the virtual machine; exit stops the lab'"
    return f"stty rows {lines} columns {columns}; {started}; {said}; {SHELL} || true"


def environment(name: str, accelerator: Accelerator) -> dict[str, str]:
    """Variables of the guest; `fairlead` is found in its search path."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    found = {"PATH": path, "FAIRLEAD_LAB": name, "TERM": os.environ.get("TERM", "dumb")}
    return found | ({FACTOR_VARIABLE: str(EMULATED_TIMEOUT_FACTOR)} if accelerator is Accelerator.TCG else {})
