"""`weft submit --batch`: a real job, restarted by the controller with the batch size that its measurements call for."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.controller_process import Server
from tests.hang_limit import HANG_S

from weft.core.job import Launch
from weft.core.submission import Submission

NUM_SAMPLES, EPOCHS, SCRIPT_BATCH = 256, 8, 8
SCRIPT = f"""
import json, os, sys, time
import torch, weft
class Noise(torch.utils.data.Dataset):
    def __len__(self): return {NUM_SAMPLES}
    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=draw), torch.randn((), generator=draw), index
with weft.session() as run, open(f"samples-{{os.environ['WEFT_ATTEMPT']}}-{{run.rank}}", "w") as file:
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weft.overlap(model, optimizer, tune=False)
    data = run.loader(Noise(), batch_size={SCRIPT_BATCH}, batch_rule="linear")
    run.resume(model=model, optimizer=optimizer, data=data)
    for x, y, indices in run.steps(data, epochs={EPOCHS}):
        if run.rank:
            time.sleep(0.02)  # the other worker waits for this one: a part of the step that no batch makes longer
        optimizer.zero_grad()
        (model(x).squeeze(1) - y).square().mean().backward()
        optimizer.step()
        row = [run.epoch, data.batch_size, optimizer.param_groups[0]["lr"], indices.tolist()]
        print(json.dumps(row), file=file, flush=True)
        if run.rank == 0:
            print("step", run.step, flush=True)
"""
MEASURED_STEPS = 110
"""Ten measurements, one in eight steps, and reports of them."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.client.shutdown(stop_jobs=True)
    server.end()


def test_a_restarted_job_trains_with_a_better_batch_and_sees_every_sample_once(server: Server, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = Launch((sys.executable, str(script)), str(tmp_path), batch="8:64")
    job = server.client.submit(Submission(launch, name="ranged", min_workers=2, max_workers=2))
    _follow_until(server, job, f"step {MEASURED_STEPS}\n")
    server.client.change(job, min_workers=1, max_workers=1)
    (done,) = server.client.wait([job], timeout_s=HANG_S)
    assert done["state"] == "COMPLETED", done["reason"]
    rows = {
        file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in tmp_path.glob("samples-*")
    }
    assert set(rows) == {"samples-1-0", "samples-1-1", "samples-2-0"}
    (batch,) = {row[1] for row in rows["samples-2-0"]}
    assert {row[1] for row in rows["samples-1-0"]} == {SCRIPT_BATCH}
    assert SCRIPT_BATCH < batch <= 64, "the labels are noise and half of a step is waiting: a larger batch pays"
    (rate,) = {row[2] for row in rows["samples-2-0"]}
    assert rate == pytest.approx(0.01 * batch / SCRIPT_BATCH)
    seen = Counter((row[0], index) for kept in rows.values() for row in kept for index in row[3])
    assert seen == Counter((epoch, index) for epoch in range(EPOCHS) for index in range(NUM_SAMPLES))


def _follow_until(server: Server, job: str, line: str) -> None:
    text = b""
    for data in server.client.logs(job, follow=True):
        text += data
        if line.encode() in text:
            return
    raise AssertionError(f"the job ended before {line!r}: {text.decode()}")
