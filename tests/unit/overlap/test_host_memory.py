"""Memory shared between neighbors, with two of them in one process."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.hang_limit import HANG_S

from weft.errors import OverlapError
from weft.overlap.transport.host_memory import Done, HostMemory

Pair = tuple[HostMemory, HostMemory]


@pytest.fixture
def pair() -> Iterator[Pair]:
    memories = HostMemory(0, 3), HostMemory(1, 3)
    addresses = [(rank, memory.address) for rank, memory in enumerate(memories)]
    for memory in memories:
        memory.meet(addresses, timeout_s=HANG_S)
    yield memories
    for memory in memories:
        memory.close()


def test_what_one_writes_the_other_reads_in_the_same_place(pair: Pair) -> None:
    for _ in range(2):  # a first stretch in front
        ours, theirs = (memory.allocate(1000, torch.float32) for memory in pair)
    theirs[400:700] = torch.arange(300.0)
    assert torch.equal(pair[0].of_neighbor(ours[400:700], 1), torch.arange(300.0))
    assert torch.equal(pair[0].of_neighbor(ours[400:700].view(3, 100), 1)[2], torch.arange(200.0, 300.0))


def test_one_place_read_twice_shows_what_the_neighbor_wrote_in_between(pair: Pair) -> None:
    ours, theirs = (memory.allocate(1000, torch.float32) for memory in pair)
    for number in range(2):
        theirs.fill_(number)
        assert torch.equal(pair[0].of_neighbor(ours, 1), torch.full((1000,), float(number)))
        assert torch.equal(pair[0].of_neighbor(ours.view(10, 100), 1), torch.full((10, 100), float(number)))
        assert torch.equal(pair[0].of_neighbor(ours.view(torch.int32), 1), theirs.view(torch.int32))


def test_new_memory_at_the_address_of_freed_memory_is_read_from_the_neighbors_new_memory(pair: Pair) -> None:
    for number in range(3):
        ours, theirs = (memory.allocate(5000, torch.float32) for memory in pair)
        theirs.fill_(number)
        assert torch.equal(pair[0].of_neighbor(ours, 1), torch.full((5000,), float(number)))
        del ours, theirs  # the kernel gives the same addresses to the next ones


def test_own_memory_is_among_the_neighbors(pair: Pair) -> None:
    ours, _ = (memory.allocate(1000, torch.float32) for memory in pair)
    assert pair[0].of_neighbor(ours[100:200], 0).data_ptr() == ours[100:200].data_ptr()


def test_memory_that_is_not_shared_is_refused(pair: Pair) -> None:
    with pytest.raises(OverlapError, match="not shared"):
        pair[0].of_neighbor(torch.zeros(4), 1)


def test_unused_stretches_are_freed(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):  # more than there are slots
        tensors = [memory.allocate(5000, torch.float64) for memory in pair]
        pair[0].of_neighbor(tensors[0], 1)
    del tensors
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_wait_ends_when_the_last_neighbor_has_done_it(pair: Pair) -> None:
    done = threading.Event()

    def wait() -> None:
        pair[0].await_all(Done.CONTRIBUTED, 7, 1, "send gradients")
        done.set()

    pair[0].tell(Done.CONTRIBUTED, 7)
    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not pair[0].has_done(1, Done.CONTRIBUTED, 7, 1)
    pair[1].tell(Done.CONTRIBUTED, 8)  # another bucket
    assert not done.is_set()
    pair[1].tell(Done.CONTRIBUTED, 7)
    waiting.join(HANG_S)
    assert done.is_set()


def test_a_neighbor_that_gave_up_is_not_waited_for(pair: Pair) -> None:
    pair[0].tell(Done.CONTRIBUTED, 0)
    pair[1].give_up()
    with pytest.raises(
        OverlapError, match=r"waiting for worker 1 on the same host to send gradients, but it has failed"
    ):
        pair[0].await_all(Done.CONTRIBUTED, 0, 1, "send gradients")


def test_a_silent_neighbor_is_waited_for_as_long_as_the_timeout(pair: Pair) -> None:
    pair[0].timeout_s = 0.3
    pair[0].tell(Done.TAKEN, 0)
    with pytest.raises(OverlapError, match=r"worker 1 .* timeout of 0.3 s"):
        pair[0].await_all(Done.TAKEN, 0, 1, "copy parameters")
    with pytest.raises(OverlapError, match="timeout"):
        pair[0].await_arrival(1, 0, 2, 1)


def test_an_arrival_is_seen_by_neighbors(pair: Pair) -> None:
    pair[1].arrival_of(5, 2)[0] = 3  # as a network thread does
    pair[0].await_arrival(1, 5, 2, 3)


def test_a_process_of_another_pid_namespace_is_not_taken_for_a_neighbor(pair: Pair) -> None:
    third = HostMemory(2, 3)
    stranger = replace(pair[0].address, nonce=bytes(16))
    with pytest.raises(OSError, match="is not worker 0"):
        third.meet([(2, third.address), (0, stranger)], HANG_S)
    third.close()


def test_a_small_file_of_a_process_of_another_pid_namespace_is_not_taken_for_a_neighbor(pair: Pair) -> None:
    third = HostMemory(2, 3)
    with tempfile.TemporaryFile() as small:
        small.write(b"a log")
        small.flush()
        stranger = replace(pair[0].address, descriptor=small.fileno())
        with pytest.raises(OSError, match="is not worker 0"):
            third.meet([(2, third.address), (0, stranger)], HANG_S)
    third.close()


def test_memory_of_a_neighbor_that_has_freed_it_is_not_opened(pair: Pair) -> None:
    ours, theirs = (memory.allocate(1000, torch.float32) for memory in pair)
    del theirs
    with pytest.raises(OverlapError, match="worker 0 cannot open memory of worker 1"):
        pair[0].of_neighbor(ours, 1)


def test_opened_memory_stays_readable_after_the_neighbor_has_freed_it(pair: Pair) -> None:
    ours, theirs = (memory.allocate(1000, torch.float32) for memory in pair)
    theirs.fill_(7.0)
    pair[0].open_neighbors(ours)
    del theirs
    assert torch.equal(pair[0].of_neighbor(ours[10:20], 1), torch.full((10,), 7.0))
