"""Somebody who stands between a client and a service: sees, keeps and changes what passes."""
import contextlib
import ctypes
import os
import socket
import threading

CLONE_NEWNET = 0x40000000


def listen(address, namespace=None):
    """A listening socket, in a network namespace if one is named."""
    if not namespace:
        return socket.create_server(address)
    made = []

    def enter():
        # A thread of its own: only that one moves there.
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
    """A proxy in front of `address`; in a network namespace it listens at the same address there. What clients send,
    and what they get, is in `there` and `back`; `change` makes of what a client sends what the service gets, and
    `change_back` of an answer what the client gets. `streams` has what each connection sent."""

    def __init__(self, address, namespace=None):
        host, port = address.rsplit(":", 1)
        self.service = (host, int(port))
        self.there, self.back, self.streams = bytearray(), bytearray(), []
        self.change = self.change_back = None
        self.listener = listen(self.service if namespace else ("127.0.0.1", 0), namespace)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        """Takes connections for ever."""
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
        """Whether a word has passed in the open."""
        return word in self.there or word in self.back

    def forget(self):
        """Forgets what has passed."""
        del self.there[:], self.back[:]
