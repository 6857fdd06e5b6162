"""A proxy between a client and a service, which records and changes the bytes that pass."""
import contextlib
import ctypes
import os
import socket
import threading

CLONE_NEWNET = 0x40000000


def listen(address, namespace=None):
    """Returns a listening socket, in a network namespace if one is given."""
    if not namespace:
        return socket.create_server(address)
    made = []

    def enter():
        # A thread of its own, because only that thread enters the namespace.
        space = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_server(address))
        except OSError as error:
            made.append(error)
        finally:
            os.close(space)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Between:
    """A proxy in front of `address`; in a network namespace it listens at the same address there. `there` has the bytes
    from clients, `back` the bytes to them. `change` turns the bytes from a client into those for the service, and
    `change_back` those of an answer into those for the client. `streams` has the bytes that each connection sent."""

    def __init__(self, address, namespace=None):
        host, port = address.rsplit(":", 1)
        self.service = (host, int(port))
        self.there, self.back, self.streams = bytearray(), bytearray(), []
        self.change = self.change_back = None
        self.listener = listen(self.service if namespace else ("127.0.0.1", 0), namespace)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Accepts connections for ever."""
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(self.service)
            except OSError:
                client.close()
                continue
            stream = []
            self.streams.append(stream)
            for source, sink, is_there in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.carry, args=(source, sink, is_there, stream),
                                 daemon=True).start()

    def carry(self, source, sink, is_there, stream):
        """Carries one direction of a connection."""
        seen = self.there if is_there else self.back
        try:
            while data := source.recv(1 << 16):
                seen += data
                if is_there:
                    stream.append(data)
                change = self.change if is_there else self.change_back
                sink.sendall(change(data) if change else data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def sees(self, word):
        """Returns whether a word has passed in plain text."""
        return word in self.there or word in self.back

    def forget(self):
        """Forgets the bytes so far."""
        del self.there[:], self.back[:]
