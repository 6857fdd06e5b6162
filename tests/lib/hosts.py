"""Hosts of NVMe/TCP for tests with hostile ones: capsules and queue pairs byte by byte."""
import socket
import struct


def sgl(length):
    """Returns a descriptor of data that follows on the transport, or lies in the capsule."""
    return struct.pack("<QI3sB", 0, length, bytes(3), 0x5A)


def capsule(opcode, command, dwords=(), nsid=1, data=b"", length=0):
    """Returns a command capsule; of a Fabrics command `nsid` is the type."""
    where = struct.pack("<QI3sB", 0, len(data), bytes(3), 1) if data else sgl(length)
    sqe = struct.pack("<BBHI", opcode, 0x40, command, nsid) + bytes(16) + where
    sqe += struct.pack("<6I", *dwords, *[0] * (6 - len(dwords)))
    return struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, 72 + len(data)) + sqe + data


def connect(queue, controller, nqn):
    """Returns a Connect command with its data."""
    data = (b"hostile-hostile-" + struct.pack("<H", controller)).ljust(256, b"\0")
    data += nqn.ljust(256, b"\0") + b"nqn.2026-01.test:hostile".ljust(256, b"\0") + bytes(256)
    return capsule(0x7F, 0, (queue << 16, 31), nsid=1, data=data)


IC_REQ = struct.pack("<BBBBIHBBI", 0, 0, 128, 0, 128, 0, 0, 0, 0) + bytes(112)


class Host:
    """A queue pair up to its Connect."""

    def __init__(self, address, nqn, queue=0, controller=0xFFFF, timeout=5):
        self.socket = socket.create_connection(address, timeout)
        self.socket.sendall(IC_REQ)
        self.read(128)
        self.socket.sendall(connect(queue, controller, nqn))
        answer = self.read(24)
        assert answer[0] == 5 and answer[22:24] == bytes(2), f"Connect failed: {answer.hex()}"
        self.controller = struct.unpack("<H", answer[8:10])[0]
        if queue == 0:
            # Property Set of CC: enabled, entries of 64 and 16 bytes.
            self.socket.sendall(capsule(0x7F, 1, (0, 0x14, 0x460001), nsid=0))
            self.read(24)

    def read(self, count):
        """Reads exactly this number of bytes."""
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            assert part, "the target closed the connection"
            data += part
        return data
