"""The benchmark's worker on two plain processes: a contender that trains wrongly has a meaningless time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.overlap_scenarios import CONTENDERS, Scenario, tiny_run
from tests.hang_limit import HANG_S

from weft.engines.rendezvous import ReservedPort

ROOT = Path(__file__).resolve().parents[3]


def run_on_loopback(module: str, scenario: Scenario) -> list[dict[str, Any]]:
    with ReservedPort() as reserved:
        outputs = _run_both(module, scenario, reserved.port)
    return [json.loads(line) for line in outputs[0].splitlines() if line.startswith("{")]


def _run_both(module: str, scenario: Scenario, port: int) -> list[str]:
    workers = []
    for rank in range(2):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
            "OMP_NUM_THREADS": "1",
        }
        command = (sys.executable, "-m", f"benchmarks.{module}", json.dumps(scenario.as_json()))
        workers.append(
            subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [worker.communicate(timeout=HANG_S)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def messages() -> list[dict[str, Any]]:
    return run_on_loopback("overlap_worker", tiny_run(CONTENDERS)[0])


def test_the_connections_that_ddp_uses_are_counted(messages: list[dict[str, Any]]) -> None:
    # To the other worker, and to the store.
    assert messages[-1]["result"]["group_connections"] == 2


def test_every_contender_is_timed(messages: list[dict[str, Any]]) -> None:
    contenders = messages[-1]["result"]["contenders"]
    assert tuple(contenders) == CONTENDERS
    assert all(lane["step_s"] > 0 for lane in contenders.values())


def test_contenders_that_promise_exact_training_give_ddps_losses(messages: list[dict[str, Any]]) -> None:
    contenders = messages[-1]["result"]["contenders"]
    exact = ("ddp", "ddp_best", "ddp_list", "ddp_plan", "dear", "weft", "weft_eager")
    assert {name: contenders[name]["loss_equal_to_ddp"] for name in exact} == dict.fromkeys(exact, True)


def test_a_worker_alone_trains_another_model(messages: list[dict[str, Any]]) -> None:
    """Otherwise the comparison of losses could not tell right from wrong."""
    assert messages[-1]["result"]["contenders"]["alone"]["loss_equal_to_ddp"] is False


def test_sharded_optimizer_state_is_counted_as_half(messages: list[dict[str, Any]]) -> None:
    contenders = messages[-1]["result"]["contenders"]
    for sharded in ("fsdp2", "weft"):
        assert contenders[sharded]["state_bytes"] < 0.55 * contenders["ddp"]["state_bytes"]


def test_rounds_are_interleaved_and_the_network_is_measured_in_each(messages: list[dict[str, Any]]) -> None:
    result = messages[-1]["result"]
    assert len(result["network_s"]) == 2
    assert min(result["network_s"]) > 0
    assert {len(lane["round_s"]) for lane in result["contenders"].values()} == {2}
    said = [message["progress"] for message in messages if message.get("progress", "").startswith("round")]
    # Every second round goes backward, and another contender begins.
    assert [text.rpartition(" ")[2] for text in said[: len(CONTENDERS)]] == list(CONTENDERS)
    assert said[len(CONTENDERS)].endswith("alone")
    assert said[-1].endswith("ddp")


def test_the_shape_of_a_step_is_measured(messages: list[dict[str, Any]]) -> None:
    shape = messages[-1]["result"]["shape"]
    assert shape["first_layer_bytes"] == (32 * 64 + 64) * 4
    assert min(shape["forward_s"], shape["backward_s"]) > 0
    step_s = messages[-1]["result"]["contenders"]["alone"]["step_s"]
    assert shape["forward_s"] + shape["backward_s"] + shape["update_s"] == pytest.approx(step_s)


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    messages = run_on_loopback("overlap_memory", tiny_run(("ddp",))[0].memory("ddp"))
    assert messages[-1]["result"]["peak_bytes"] > 0
    assert messages[-1]["result"]["settled_bytes"] > 0
