"""A rank that moves bytes between rank 0 and all others at once, over TCP; rank 0 writes bytes per second. No torch."""

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

Place = tuple[str, int]


def receive(peer: socket.socket, left: int) -> None:
    buffer = bytearray(1 << 18)
    while left:
        got = peer.recv_into(buffer, min(left, len(buffer)))
        assert got, "the peer has left"
        left -= got


def gather(peer: socket.socket, num_bytes: int) -> None:
    """Do rank 0's part of one transfer from one other rank."""
    peer.sendall(b"g")
    receive(peer, num_bytes)


def scatter(peer: socket.socket, num_bytes: int) -> None:
    """Do rank 0's part of one transfer to one other rank."""
    peer.sendall(bytes(num_bytes))
    receive(peer, 1)


def serve(place: Place, direction: str, num_bytes: int, repeats: int, world_size: int) -> None:
    transfer = partial(gather if direction == "gather" else scatter, num_bytes=num_bytes)
    with socket.create_server(place) as server, ThreadPoolExecutor(world_size) as pool:
        peers = [server.accept()[0] for _ in range(world_size - 1)]
        for _ in range(repeats):
            start_s = time.monotonic()
            list(pool.map(transfer, peers))
            sys.stdout.write(f"{num_bytes * len(peers) / (time.monotonic() - start_s)}\n")
        for peer in peers:
            peer.close()


def answer(place: Place, direction: str, num_bytes: int, repeats: int) -> None:
    with connect(place) as peer:
        for _ in range(repeats):
            receive(peer, 1 if direction == "gather" else num_bytes)
            peer.sendall(bytes(num_bytes if direction == "gather" else 1))


def connect(place: Place) -> socket.socket:
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            time.sleep(0.01)


def main() -> None:
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    direction, num_bytes, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if os.environ["RANK"] == "0":
        serve(place, direction, num_bytes, repeats, int(os.environ["WORLD_SIZE"]))
    else:
        answer(place, direction, num_bytes, repeats)


if __name__ == "__main__":
    main()
