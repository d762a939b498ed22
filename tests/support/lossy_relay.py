"""Lossy relay: loses, doubles and delays whole messages between a run's workers and its master, by
a seed.

lossy_relay.py LISTEN MASTER SEED LOST DOUBLED: two ports, a number, and two shares. All messages come
through until SIGUSR1, so that the run begins.
"""

import heapq
import random
import signal
import sys
import time

import zmq

DELAYS_S = (0.0, 0.0, 0.01, 0.05, 0.3)


class Relay:
    def __init__(self, listen: int, master: int, seed: int, lost: float, doubled: float) -> None:
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.bind(f"tcp://127.0.0.1:{listen}")
        self._master, self._lost, self._doubled = master, lost, doubled
        self._drawn = random.Random(seed)
        self._workers: dict[bytes, zmq.Socket[bytes]] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._front, zmq.POLLIN)
        self._due: list[tuple[float, int, zmq.Socket[bytes], list[bytes]]] = []
        self._count = 0
        self._faithful = True
        signal.signal(signal.SIGUSR1, self._lose)

    def _lose(self, *signalled: object) -> None:
        self._faithful = False

    def run(self) -> None:
        while True:
            for socket, _ in self._poller.poll(5):
                self._take(socket)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, socket, parts = heapq.heappop(self._due)
                try:
                    socket.send_multipart(parts, zmq.NOBLOCK)
                except zmq.ZMQError:
                    continue

    def _take(self, socket: "zmq.Socket[bytes]") -> None:
        parts = socket.recv_multipart()
        if socket is self._front:
            self._pass_on(self._to_master(parts[0]), parts[1:])
            return
        name = next(name for name, one in self._workers.items() if one is socket)
        self._pass_on(self._front, [name, *parts])

    def _to_master(self, name: bytes) -> "zmq.Socket[bytes]":
        if name not in self._workers:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, name)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"tcp://127.0.0.1:{self._master}")
            self._poller.register(socket, zmq.POLLIN)
            self._workers[name] = socket
        return self._workers[name]

    def _pass_on(self, socket: "zmq.Socket[bytes]", parts: list[bytes]) -> None:
        now = time.monotonic()
        if not self._faithful and self._drawn.random() < self._lost:
            return
        copies = 1 if self._faithful else 1 + (self._drawn.random() < self._doubled)
        for _ in range(copies):
            self._count += 1
            delay_s = 0.0 if self._faithful else self._drawn.choice(DELAYS_S)
            heapq.heappush(self._due, (now + delay_s, self._count, socket, parts))


if __name__ == "__main__":
    listen, master, seed = map(int, sys.argv[1:4])
    Relay(listen, master, seed, float(sys.argv[4]), float(sys.argv[5])).run()
