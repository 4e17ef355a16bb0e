"""Plans come and go while a job is tuned; its memory must not grow with them."""

from __future__ import annotations

import torch

from weft.overlap.exchange_memory import Arena

KIND = (torch.float32, torch.device("cpu"))


def test_buffers_do_not_overlap() -> None:
    arena = Arena()
    arena.clear({KIND: [100, 7, 1000]})
    taken = [arena.take(KIND, length) for length in (100, 7, 1000)]
    for number, buffer in enumerate(taken):
        buffer.fill_(number)
    assert [buffer.unique().tolist() for buffer in taken] == [[0.0], [1.0], [2.0]]
    assert [len(buffer) for buffer in taken] == [100, 7, 1000]


def test_next_plan_is_laid_out_in_the_memory_of_the_last() -> None:
    arena = Arena()
    arena.clear({KIND: [10_000]})
    first = arena.take(KIND, 10_000).data_ptr()
    for lengths in ([5_000, 4_900], [2_500] * 4, [10_000]):
        arena.clear({KIND: lengths})
        assert arena.take(KIND, lengths[0]).data_ptr() == first
        taken = [arena.take(KIND, length) for length in lengths[1:]]
        assert sum(len(buffer) for buffer in taken) == sum(lengths[1:])


def test_larger_plan_gets_more() -> None:
    arena = Arena()
    arena.clear({KIND: [100]})
    arena.take(KIND, 100)
    arena.clear({KIND: [100, 50_000]})
    assert [len(arena.take(KIND, length)) for length in (100, 50_000)] == [100, 50_000]
