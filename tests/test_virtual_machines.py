"""What boots another kernel: the archive of the initial file system, its modules, and the words of the guest."""

import lzma
from pathlib import Path

import pytest

from fairlead.lab import command
from fairlead.lab.errors import LabError
from fairlead.lab.vm import initramfs, kernels, up
from fairlead.lab.vm.kernels import KERNELS, KernelTree
from fairlead.lab.vm.machine import Accelerator

DEPENDENCIES = """\
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko
kernel/fs/netfs/netfs.ko:
kernel/fs/overlayfs/overlay.ko.xz:
kernel/drivers/char/virtio_console.ko:
"""


@pytest.fixture
def tree(tmp_path: Path) -> KernelTree:
    """A kernel with virtio_pci built in; the content of each module is its path."""
    for line in DEPENDENCIES.splitlines():
        name = line.partition(":")[0]
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress(name.encode()) if file.suffix == ".xz" else name.encode())
    (tmp_path / "modules.dep").write_text(DEPENDENCIES)
    (tmp_path / "modules.builtin").write_text("kernel/drivers/virtio/virtio_pci.ko\n")
    return KernelTree(version="6.1.0", image=tmp_path / "vmlinuz", modules=tmp_path)


def read_archive(data: bytes) -> dict[str, bytes]:
    """The files of an archive of cpio's format newc."""
    found, place = {}, 0
    while True:
        assert data[place : place + 6] == b"070701"
        numbers = [int(data[place + 6 + 8 * field : place + 14 + 8 * field], 16) for field in range(13)]
        size, length = numbers[6], numbers[11]
        name = data[place + 110 : place + 110 + length - 1].decode()
        start = (place + 110 + length + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = data[start : start + size]
        place = (start + size + 3) // 4 * 4


def test_initramfs_lists_modules_after_their_dependencies(
    tree: KernelTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shell = tmp_path / "bin" / initramfs.SHELL
    shell.parent.mkdir()
    shell.write_text("a shell")
    shell.chmod(0o755)
    monkeypatch.setenv("PATH", str(shell.parent))
    initramfs.write(tree, tmp_path / "archive")
    found = read_archive((tmp_path / "archive").read_bytes())
    order = [found[f"modules/{name}"].decode() for name in found["modules/order"].decode().split()]
    assert sorted(order) == sorted(line.partition(":")[0] for line in DEPENDENCIES.splitlines())
    assert order.index("kernel/net/9p/9pnet.ko") < order.index("kernel/net/9p/9pnet_virtio.ko")
    assert order.index("kernel/fs/netfs/netfs.ko") < order.index("kernel/fs/9p/9p.ko")
    assert (found["bin/busybox"], found["init"]) == (b"a shell", initramfs.INIT.encode())


def test_missing_kernel_module_is_named(tree: KernelTree, tmp_path: Path):
    (tree.modules / "modules.dep").write_text("")
    with pytest.raises(LabError, match=r"kernel 6\.1\.0 has no module virtio_console"):
        initramfs.write(tree, tmp_path / "archive")


def test_unknown_kernel_is_rejected_with_the_available_names():
    with pytest.raises(LabError, match="unknown kernel 'bullseye'; expected one of bookworm, trixie, noble, own"):
        kernels.fetch("bullseye", print)


def test_default_kernel_exists_and_supplies_the_keyrings():
    names = {kernel.name for kernel in KERNELS}
    assert kernels.DEFAULT_KERNEL in names
    assert {kernel.archive.keyring_package[0] for kernel in KERNELS if kernel.archive.keyring_package} <= names


def test_a_mirror_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEBIAN_MIRROR", "http://mirror.example/debian")
    assert KERNELS[0].archive.url == "http://mirror.example/debian"


def test_command_in_the_vm_runs_only_after_lab_up_succeeds():
    words = up.script("lab", ["--serve=127.0.0.1:9876"], ["echo", "it's up"])
    assert words.endswith("""fairlead.cli.main lab up --name lab --serve=127.0.0.1:9876 && exec echo 'it'"'"'s up'""")


def test_only_an_emulated_vm_has_longer_timeouts():
    assert "FAIRLEAD_LAB_PATIENCE" in up.environment("lab", Accelerator.TCG)
    assert "FAIRLEAD_LAB_PATIENCE" not in up.environment("lab", Accelerator.KVM)


def test_a_command_without_a_virtual_machine_is_refused(capsys: pytest.CaptureFixture[str]):
    assert command.main(["up", "--", "echo", "hello"]) == 1
    assert capsys.readouterr().err == "error: 'echo hello': a command requires --vm\n"


def test_the_lab_in_the_virtual_machine_gets_the_other_options(monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(command, "up_in_vm", lambda *words: seen.append(words[:-1]))
    assert command.main(["up", "--vm", "noble", "--name", "x", "--zones", "a,b:c", "--serve", "--", "make", "-k"]) == 0
    options = ["--zones=a,b:c", "--serve=127.0.0.1:9876"]
    assert command.main(["up", "--vm"]) == 0
    assert seen == [("noble", "x", options, ["make", "-k"]), ("trixie", "lab", [], [])]
