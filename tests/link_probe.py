"""What a link of the testbed really carries: a plain socket transfer from host 1 to host 0 and back.

A sanity check for every result: if this is far from the set rate, no result is meaningful.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from benchmarks.testbed import Testbed

PIECE_BYTES = 256 * 1024
PROBE_PORT_OFFSET = 1


def measure(bed: Testbed, *, seconds: float = 1.0) -> float:
    """Bits per second that hosts 0 and 1 exchange, both ways at once; the slower way counts."""
    num_bytes = max(PIECE_BYTES * 8, int(bed.rate_bits_per_s * seconds / 8))
    root = Path(__file__).resolve().parents[1]
    outputs = bed.run(
        (sys.executable, "-m", "tests.link_probe", str(num_bytes)),
        cwd=root,
        env={"PYTHONPATH": os.pathsep.join((str(root), str(root / "src")))},
        timeout_s=300 + 10 * seconds,  # on a busy machine Python alone takes many seconds to start
    )
    return min(float(json.loads(output.lines[-1])["bits_per_s"]) for output in outputs[:2])


def main(num_bytes: int) -> None:
    """One end of the exchange; ranks above 1 have nothing to do."""
    rank = int(os.environ["RANK"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + PROBE_PORT_OFFSET)
    if rank > 1:
        return
    with _connect(rank, address) as link:
        sender = threading.Thread(target=_send, args=(link, num_bytes))
        link.recv(1) if rank == 0 else link.sendall(b"!")
        started_s = time.perf_counter()
        sender.start()
        _receive(link, num_bytes)
        elapsed_s = time.perf_counter() - started_s
        sender.join()
    print(json.dumps({"bits_per_s": num_bytes * 8 / elapsed_s}))


def _connect(rank: int, address: tuple[str, int]) -> socket.socket:
    if rank == 0:
        with socket.create_server(address) as server:
            return server.accept()[0]
    deadline_s = time.monotonic() + 200
    while True:
        try:
            return socket.create_connection(address, timeout=200)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _send(link: socket.socket, num_bytes: int) -> None:
    piece = bytes(PIECE_BYTES)
    while num_bytes > 0:
        link.sendall(piece[: min(PIECE_BYTES, num_bytes)])
        num_bytes -= PIECE_BYTES


def _receive(link: socket.socket, num_bytes: int) -> None:
    while num_bytes > 0:
        taken = len(link.recv(PIECE_BYTES))
        if taken == 0:
            raise ConnectionError(f"the other host closed the connection with {num_bytes} bytes left to receive")
        num_bytes -= taken


if __name__ == "__main__":
    main(int(sys.argv[1]))
