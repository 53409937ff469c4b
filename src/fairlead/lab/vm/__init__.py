"""Another kernel, in a virtual machine that has this machine's own files: where the lab runs on the kernel's datapath.

`kernels` fetches a distribution's kernel into a cache, `initramfs` makes what boots it, `machine` runs a command in it.
The guest sees the whole root file system of this machine, and what it writes stays in its own memory. Nothing is
installed here, no boot loader is touched, and root is not needed where QEMU may use KVM and the files are readable.
"""
