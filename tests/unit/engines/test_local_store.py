"""A plain script's own rendezvous can be reached only from this machine."""

from __future__ import annotations

from tests.unit.engines.conftest import Bench

SCRIPT = """
    import os, socket
    import torch.distributed as dist

    def reached_at(address):
        with socket.socket() as stranger:
            return stranger.connect_ex((address, int(os.environ["MASTER_PORT"]))) == 0

    dist.init_process_group("gloo")
    print("reached at", [address for address in ("127.0.0.1", "127.0.0.2") if reached_at(address)], flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


def check_rendezvous(bench: Bench) -> None:
    """127.0.0.2 is an address of this machine that is not MASTER_ADDR, as those of its networks are."""
    assert bench.run(SCRIPT).exit_code == 0, bench.console.stdout
    assert [line for line in bench.console.stdout if "127.0.0.2" in line] == []
    assert sum("reached at ['127.0.0.1']" in line for line in bench.console.stdout) == 2


def test_a_plain_scripts_rendezvous_is_not_reachable_from_other_networks(bench: Bench) -> None:
    check_rendezvous(bench)
