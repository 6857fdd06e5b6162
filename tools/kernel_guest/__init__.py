"""A Debian kernel in QEMU, for tests against the kernel's own NVMe/TCP target and host.

debian    downloads QEMU, the kernel and the guest's programs from Debian's archive
image     makes the guest's initial RAM disk from them, once
machine   starts QEMU, follows what the guest writes, and ends it
main      the command line
"""
