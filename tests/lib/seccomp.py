"""A seccomp filter that refuses io_uring, as filters of containers do.

`python3 seccomp.py ERRNO PROGRAM...` runs a program under it; `refuse(errno)` is for `preexec_fn`.
"""
import ctypes
import errno
import os
import struct
import sys

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_NO_NEW_PRIVS = 38
# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
AUDIT_ARCH_X86_64 = 0xC000003E
LOAD_WORD, JUMP_EQUAL, JUMP_ABOVE_OR_EQUAL, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_OFFSET, ARCH_OFFSET = 0, 4
# io_uring_setup, io_uring_enter, io_uring_register
FIRST, LAST = 425, 427


class Program(ctypes.Structure):
    """struct sock_fprog"""
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse(number):
    """Makes each call of io_uring fail with an errno, in this process and in those that it starts."""
    def step(code, if_true, if_false, value):
        return struct.pack("HBBI", code, if_true, if_false, value)
    steps = [step(LOAD_WORD, 0, 0, ARCH_OFFSET),
             step(JUMP_EQUAL, 1, 0, AUDIT_ARCH_X86_64),
             step(RETURN, 0, 0, RET_KILL_PROCESS),
             step(LOAD_WORD, 0, 0, NUMBER_OFFSET),
             step(JUMP_ABOVE_OR_EQUAL, 0, 2, FIRST),
             step(JUMP_ABOVE_OR_EQUAL, 1, 0, LAST + 1),
             step(RETURN, 0, 0, RET_ERRNO | number),
             step(RETURN, 0, 0, RET_ALLOW)]
    code = ctypes.create_string_buffer(b"".join(steps))
    program = Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 and libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")


if __name__ == "__main__":
    refuse(getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
