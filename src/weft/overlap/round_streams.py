"""Stream order of a round on a device with streams; see [Note: streams] in device.py.

Autograd runs each operation of backward on the stream of its forward, so the gradients of one bucket may be written on
several streams.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.overlap.bucket import Bucket
from weft.overlap.device import Device


class RoundStreams:
    """The streams of one round, from the last step to the launch of its buckets."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stepped: Any = None
        self._began: Any = None
        self._entered: set[Any] = set()
        self._writers: dict[int, set[Any]] = {}

    def step_ended(self) -> None:
        """Up to this point, the step uses the buckets' memory on the current stream."""
        self._stepped = self._device.record()

    def await_step(self) -> None:
        if self._stepped is not None:
            self._device.wait(self._stepped)

    def begin(self) -> None:
        """From here on, after the work queued on the current stream, buckets may be written."""
        self._began = self._device.record()
        self._entered = {self._device.current_stream()}
        self._writers = {}

    def enter(self, buckets: Iterable[Bucket] = ()) -> None:
        """The current stream is about to write into ``buckets``."""
        stream = self._device.current_stream()
        if stream not in self._entered:
            self._device.wait(self._began)
            self._entered.add(stream)
        for bucket in buckets:
            self._writers.setdefault(bucket.plan.index, set()).add(stream)

    def launch(self, bucket: Bucket) -> None:
        """The current stream is about to launch ``bucket``: after all streams that wrote into it."""
        self.enter()
        for stream in self._writers.pop(bucket.plan.index, ()):
            self._device.join(stream)
