"""What a worker is told before it starts."""

import pytest

from weft.engines.worker_launch import Devices, Script, Worker, gang, num_workers_of, script_of, visible_gpus
from weft.errors import InputError, UsageError

FOUR_CORES = Devices((0, 1, 2, 3))


def test_each_worker_gets_a_core_of_its_own():
    assert [FOUR_CORES.cores_of(rank, 3) for rank in range(3)] == [(0,), (1,), (2,)]


def test_more_workers_than_cores_share_them_evenly():
    cores = [Devices((4, 7)).cores_of(rank, 5) for rank in range(5)]
    assert cores == [(4,), (7,), (4,), (7,), (4,)]


def test_with_gpus_no_core_is_left_out_and_none_is_shared():
    dealt = [Devices(tuple(range(7)), num_gpus=2).cores_of(rank, 2) for rank in range(2)]
    assert sorted(dealt[0] + dealt[1]) == list(range(7))


def test_auto_means_one_worker_per_device():
    assert num_workers_of("auto", FOUR_CORES) == 4
    assert num_workers_of("auto", Devices((0, 1, 2, 3), num_gpus=2)) == 2
    assert num_workers_of("3", FOUR_CORES) == 3


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²", "1025"])
def test_an_impossible_number_of_workers_is_rejected(text):
    with pytest.raises(UsageError, match="--workers"):
        num_workers_of(text, FOUR_CORES)


@pytest.mark.parametrize(
    ("chosen", "expected"), [(None, 3), ("0,1", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3,4", 3)]
)
def test_gpus_are_those_a_worker_would_see(chosen, expected, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_gpus(environment, tmp_path) == expected


def test_a_machine_without_gpus_has_none_even_if_the_variable_lists_some(tmp_path):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path) == 0


def test_a_script_written_for_torchrun_finds_its_names():
    environment = {"HOME": "/home/ada", "RANK": "7", "MASTER_PORT": "1"}
    workers = gang(Script("train.py"), num_workers=2, devices=FOUR_CORES, port=4321, environment=environment, attempt=3)
    told = workers[1].environment
    assert told["HOME"] == "/home/ada"
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("1", "1", "2", "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("127.0.0.1", "4321")
    assert told["WEFT_ATTEMPT"] == "3"
    assert told["OMP_NUM_THREADS"] == "1"


def test_user_settings_override_defaults():
    environment = {"OMP_NUM_THREADS": "4", "GLOO_SOCKET_IFNAME": "eth0"}
    [worker] = gang(Script("t.py"), num_workers=1, devices=FOUR_CORES, port=1, environment=environment)
    assert worker.environment["OMP_NUM_THREADS"] == "4"
    assert worker.environment["GLOO_SOCKET_IFNAME"] == "eth0"


def test_workers_of_one_machine_talk_over_the_loopback_interface():
    workers = gang(Script("t.py"), num_workers=2, devices=FOUR_CORES, port=1, environment={})
    assert [worker.environment["GLOO_SOCKET_IFNAME"] for worker in workers] == ["lo", "lo"]
    assert {worker.environment["MASTER_ADDR"] for worker in workers} == {"127.0.0.1"}


def test_a_worker_is_unchanged_when_sent_to_the_pool():
    script = Script("tr'ain; echo.py", ("--lr", "ü"), cwd="/")
    [worker] = gang(script, num_workers=1, devices=FOUR_CORES, port=1, environment={"A": "b\nc"})
    assert Worker.from_json(worker.to_json()) == worker


def test_a_script_that_cannot_run_is_named_before_anything_starts(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="no script"):
        script_of([], is_module=False, cwd=str(tmp_path))
    with pytest.raises(InputError, match=r"train\.py: no such file"):
        script_of(["train.py"], is_module=False, cwd=str(tmp_path))
    with pytest.raises(InputError, match="folder: this folder has no __main__"):
        script_of(["folder"], is_module=False, cwd=str(tmp_path))


def test_arguments_of_the_script_stay_its_own(tmp_path):
    (tmp_path / "train.py").touch()
    script = script_of(["train.py", "--workers", "9", "--", "-m"], is_module=False, cwd=str(tmp_path))
    assert script.args == ("--workers", "9", "--", "-m")
