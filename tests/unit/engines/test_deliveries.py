"""What nodes get before an attempt starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from weft.engines.ray.cluster_order import ClusterOrder
from weft.engines.ray.code_package import NodeCode
from weft.engines.ray.deliveries import Deliveries


class CodeAgentDouble:
    """An agent as deliveries call it, without Ray."""

    def __init__(self, root: Path) -> None:
        self.code = NodeCode(root)
        self.num_pieces = 0
        self.is_known = _Answer(lambda job_id, attempt: False)
        self.has_code = _Answer(self.code.has)
        self.put_code = _Answer(self._put)

    def _put(self, job_id: str, offset: int, data: bytes, is_last: bool) -> None:
        self.num_pieces += 1
        self.code.put(job_id, offset, data, is_last=is_last)


class _Answer:
    def __init__(self, call: Any) -> None:
        self._call = call

    async def remote(self, *words: Any) -> Any:
        return self._call(*words)


def test_all_nodes_of_an_attempt_get_the_code_at_the_same_time_and_only_once(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')")
    agents = [CodeAgentDouble(tmp_path / f"node{number}") for number in range(8)]
    deliveries = Deliveries(tmp_path / "jobs", relay=False, ship=True)
    order = ClusterOrder("j", 1, ("python", "train.py"), str(folder), {}, ())

    async def bring() -> None:
        await asyncio.gather(*(deliveries.bring(order, agent) for agent in agents))

    for _ in range(2):
        asyncio.run(bring())
    assert [agent.num_pieces for agent in agents] == [1] * 8
    assert {(agent.code.folder("j") / "train.py").read_text() for agent in agents} == {"print('hello')"}
