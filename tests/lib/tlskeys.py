"""NVMe's TLS keys, derived with nothing but Python's own libraries: another implementation to compare ours with.

As a program: tlskeys.py KEYFILE HOSTNQN NQN prints the identity of version 1 and the PSK in hexadecimal digits.
"""
import base64
import hmac
import sys
from pathlib import Path

HASHES = {1: ("sha256", 32), 2: ("sha384", 48)}


def psk(text, host, subsystem, version, compat=False):
    """Returns the identity and the PSK of a configured key for a host and a subsystem (TCP 3.6.1).

    With `compat` as libnvme derived it before 1.15.
    """
    _, number, encoded, _ = text.strip().split(":")
    secret, number = base64.b64decode(encoded)[:-4], int(number)
    name, size = HASHES[number]
    length, names = size.to_bytes(2, "little" if compat else "big"), f"{host} {subsystem}".encode()

    def expand(key, label, context):
        label = b"tls13 " + label
        if not compat:
            label, context = bytes([len(label)]) + label, bytes([len(context)]) + context
        extracted = hmac.new(bytes(size), key, name).digest()
        return hmac.new(extracted, length + label + context + b"\1", name).digest()

    retained = expand(secret, b"HostNQN", host.encode())
    if version == 0:
        identity = b"NVMe0R%02d %s" % (number, names)
        return identity.decode(), expand(retained, b"nvme-tls-psk", identity)
    digest = base64.b64encode(hmac.new(retained, names + b" NVMe-over-Fabrics", name).digest())
    identity = b"NVMe1R%02d %s %s" % (number, names, digest)
    return identity.decode(), expand(retained, b"nvme-tls-psk", b"%02d %s" % (number, digest))


if __name__ == "__main__":
    identity, secret = psk(Path(sys.argv[1]).read_text(), sys.argv[2], sys.argv[3], 1)
    print(identity, secret.hex(), sep="\n")
