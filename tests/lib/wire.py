"""The parts of the metadata service's protocol that tests need: frames, the handshake, the calls of an
administrator (crates/protocol: frame.rs, auth.rs, admin.rs), and postcard's encoding of integers.
"""
import hashlib
import hmac
import os
import socket
import struct

MAGIC, VERSION = b"TSMG", 11
HANDSHAKE, CALL, ANSWER = 0, 1, 2
CLIENT, AGENT, ADMIN = 0, 1, 2
STATUS, FILES_HIT = 0, 1

CRC_TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    CRC_TABLE.append(byte)


def crc32c(data):
    """Returns the CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def frame(kind, tag, body):
    """Returns a frame with its checksum."""
    header = MAGIC + struct.pack("<HHQI", VERSION, kind, tag, len(body))
    return header + struct.pack("<I", crc32c(header + body)) + body


def varint(number):
    """Returns the encoding of an unsigned integer of more than a byte."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


class Reader:
    """Decodes postcard."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        """Returns this number of bytes."""
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self):
        """Decodes an unsigned integer."""
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def bytes(self):
        """Decodes a byte string, or a text."""
        return self.take(self.number())

    def list(self, item):
        """Decodes a list of what `item` reads."""
        return [item() for _ in range(self.number())]


class Connection:
    """A connection that has proved the secret."""

    def __init__(self, address, secret, role, timeout=10):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        hello = varint(VERSION) + bytes([role]) + (nonce := os.urandom(32))
        self.send(HANDSHAKE, 0, hello)
        challenge = self.receive()[2]
        covered = struct.pack("<H", VERSION) + bytes([role]) + nonce + challenge[:32]
        key = bytes.fromhex(secret.strip())
        proof = hmac.new(key, b"tsumugi meta\0" + covered, hashlib.sha256).digest()
        assert proof == challenge[32:], "the service does not know the secret"
        self.send(HANDSHAKE, 0, hmac.new(key, b"tsumugi peer\0" + covered, hashlib.sha256).digest())

    def send(self, kind, tag, body):
        """Sends a frame."""
        self.socket.sendall(frame(kind, tag, body))

    def receive(self):
        """Returns kind, tag and body of the next frame."""
        header = self.read(24)
        _, kind, tag, length = struct.unpack("<HHQI", header[4:20])
        return kind, tag, self.read(length)

    def read(self, count):
        """Reads exactly this number of bytes."""
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the peer closed it")
            data += part
        return data

    def call(self, body, tag=1):
        """Returns the answer to a call."""
        self.send(CALL, tag, body)
        while True:
            kind, answered, answer = self.receive()
            if kind == ANSWER and answered == tag:
                return answer

    def close(self):
        """Ends the connection."""
        self.socket.close()


class Admin(Connection):
    """What an administrator may ask."""

    def __init__(self, cluster):
        super().__init__(cluster.address, cluster.secret.read_text(), ADMIN)

    def status(self):
        """Returns devices (number, node, whether online) and the number of commands that each target has refused."""
        reader = Reader(self.call(bytes([STATUS])))
        assert reader.number() == 1, "no status"
        number, text = reader.number, reader.bytes

        def device():
            found = {"device": number(), "uuid": text(), "node": text().decode()}
            found["traddr"], found["subnqn"] = text().decode(), text().decode()
            number(), number(), number(), number(), number()
            found["volatile"] = reader.take(1) == b"\1"
            found["online"] = reader.take(1) == b"\1"
            return found

        devices = reader.list(device)
        reader.list(number)
        names = ["read_local", "read_remote", "written_local", "written_remote", "commands",
                 "refused"]
        counts = reader.list(lambda: (number(), {name: number() for name in names}))
        sessions = reader.list(lambda: (number(), text().decode(), number()))
        return {"devices": devices, "counts": dict(counts), "sessions": sessions}

    def files_hit(self, count_max=1000):
        """Returns paths of files with data on offline devices, with the device's number."""
        reader = Reader(self.call(bytes([FILES_HIT]) + varint(count_max)))
        assert reader.number() == 2, "no paths"
        return reader.list(lambda: (reader.bytes().decode(), reader.number()))
