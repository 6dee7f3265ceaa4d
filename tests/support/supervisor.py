"""A stand-in for systemd: the socket that its services say to how they are."""

import select
import socket
import time


class Supervisor:
    """Listens at a path, or at an abstract name with `@` before it."""

    def __init__(self, address):
        self.address = str(address)
        self.messages = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.address[1:]}" if self.address.startswith("@") else self.address)

    def receive(self):
        """Take what has come; return all messages so far."""
        while select.select([self._socket], [], [], 0)[0]:
            self.messages.append(self._socket.recv(4096).decode())
        return self.messages

    def wait_for(self, condition, what, deadline_s=60.0):
        """Wait until `condition(messages)` is true, and return what it gives."""
        until_s = time.monotonic() + deadline_s
        while not (value := condition(self.receive())):
            assert time.monotonic() < until_s, f"{what}: not within {deadline_s} s; there came {self.messages}"
            select.select([self._socket], [], [], 0.1)
        return value

    def close(self):
        self._socket.close()
