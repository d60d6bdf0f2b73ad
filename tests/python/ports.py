"""A port to listen at, for a program that is started later."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Of 127.0.0.1. Not one that the kernel gives to outgoing connections: such a port could be taken before the
    program listens."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        first = int(f.read().split()[0])
    low = 10000 if first > 12000 else 1024
    while True:
        port = random.SystemRandom().randrange(low, max(first, low + 1000))
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
