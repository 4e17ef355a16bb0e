"""Joined output: whole lines, in order, with the rank in front."""

import os
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weft.engines.output import MAX_KEPT_LINES, MAX_LINE_BYTES, Console, JoinedOutput, Lines


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_do_not_depend_on_how_the_pipe_cut_them(data, cuts):
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    lines = Lines()
    seen = [line for low, high in pairwise(bounds) for line in lines.feed(data[low:high])]
    seen += lines.end()
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")[:-1]]
    rest = data.split(b"\n")[-1]
    assert seen == expected + ([rest] if rest else [])


def test_a_line_without_end_neither_fills_memory_nor_is_lost():
    lines = Lines()
    pieces = lines.feed(b"x" * (3 * MAX_LINE_BYTES + 5))
    assert [len(piece) for piece in pieces] == [MAX_LINE_BYTES] * 3
    assert lines.end() == [b"x" * 5]


def test_two_workers_never_share_a_line():
    written = bytearray()
    first, second = (JoinedOutput(rank, 2, written.extend) for rank in range(2))
    first.feed(b"step 1 lo")
    second.feed(b"step 1 loss 3\nwarn")
    first.feed(b"ss 2\n")
    second.end()
    first.end()
    assert bytes(written) == b"[1] step 1 loss 3\n[0] step 1 loss 2\n[1] warn\n"


def test_ranks_line_up():
    written = bytearray()
    JoinedOutput(3, 12, written.extend).feed(b"x\n")
    assert bytes(written) == b"[ 3] x\n"


def test_the_last_lines_are_kept_for_the_report():
    lines = Lines()
    lines.feed(b"".join(b"%d\n" % number for number in range(100)) + b"\xff")
    lines.end()
    assert lines.tail() == [str(number) for number in range(101 - MAX_KEPT_LINES, 100)] + ["�"]


def test_a_closed_output_pipe_is_detected_without_an_exception():
    read, write = os.pipe()
    os.close(read)
    console = Console(out=write)
    console.out(b"line\n")
    os.close(write)
    assert console.reader_is_gone
