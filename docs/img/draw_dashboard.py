"""Make dashboard.png: the dashboard as Chromium draws it, with a made-up afternoon on a machine with eight devices.

    python docs/img/draw_dashboard.py [OUT.png] [--dark] [--job NAME] [--width 1600] [--height 1000]

The jobs are staged; the dashboard, its API, and its login are real.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import math
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import uvicorn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from browser import browser  # noqa: E402
from fake_controller import TOKEN, FakeController, FakeLog  # noqa: E402
from weft.control.state import Job, JobState  # noqa: E402
from weft.core.job import Launch  # noqa: E402
from weft.core.submission import Submission  # noqa: E402
from weft.daemon.api.app import make_app  # noqa: E402
from weft.daemon.contract import Decision, LogStream, NodeView, Sentence  # noqa: E402

LOOKS_S = 8.0


@dataclasses.dataclass(frozen=True)
class Act:
    """A job on the stage: minutes before now at which it came, what it held from when, and when it ended."""

    name: str
    came_min: float
    held: tuple[tuple[float, tuple[int, ...]], ...]
    max_workers: int
    total_steps: int | None
    step_s: float
    ended_min: float | None = None
    state: JobState = JobState.RUNNING
    reason: str = ""


PLAY = (
    Act("resnet50-flowers", 14, ((9.8, (0, 1, 2, 3)), (6.1, (0, 1))), 4, 9000, 0.214),
    Act(
        "gpt2-small-wikitext",
        12,
        ((9.8, (4, 5, 6, 7)), (7.4, (4, 5)), (5.2, (4,)), (4.3, (4, 5)), (1.6, (4,))),
        8,
        40000,
        0.431,
    ),
    Act("bert-finetune-mnli", 9.5, ((9.8, ()), (7.4, (6, 7))), 2, 3000, 0.118, 3.2, JobState.COMPLETED, "completed"),
    Act("unet-cells", 6.4, ((6.1, (2, 3)),), 2, 5200, 0.162),
    Act("vit-b16-cifar lr=1e-2", 5.5, ((5.2, (5,)),), 1, 4000, 0.09, 4.4, JobState.FAILED, "exit code 1"),
    Act("speech-conformer", 4.0, ((3.1, (6, 7)),), 4, 12000, 0.377),
    Act("speech-conformer-ctc", 2.4, ((2.0, (6, 7)),), 4, 12000, 0.391),
    Act("vit-b16-cifar lr=3e-3", 2.1, ((1.6, (5,)),), 1, 4000, 0.088),
    Act("lm-sweep seed=1", 1.2, (), 4, 8000, 0.0, None, JobState.PENDING),
    Act("lm-sweep seed=2", 1.1, (), 4, 8000, 0.0, None, JobState.PENDING),
)


class Stage(FakeController):
    """The play, as far as it has come."""

    def __init__(self) -> None:
        super().__init__()
        self.begin_s = time.time()
        self.ids: dict[str, str] = {}
        for act in PLAY:
            launch = Launch(("python", "train.py", "--amp"), "/home/ana")
            self.ids[act.name] = self.submit(Submission(launch, name=act.name))
        for act in PLAY:
            job_id = self.ids[act.name]
            self.by_id[job_id] = self._job(act, self.by_id[job_id])
        for at_min in sorted({at for act in PLAY for at, _ in act.held}, reverse=True):
            self.made_decisions.append(self._decision(at_min))

    def _job(self, act: Act, job: Job) -> Job:
        devices = act.held[-1][1] if act.held and act.ended_min is None else ()
        ended_s = None if act.ended_min is None else self._s(act.ended_min)
        first_min = next((at for at, held in act.held if held), None)
        done = (act.total_steps or 0) if act.state is JobState.COMPLETED else 0
        if first_min is not None and not done:
            done = int(60 * (first_min - (act.ended_min or 0)) / act.step_s)
        return dataclasses.replace(
            job,
            spec=dataclasses.replace(job.spec, max_workers=act.max_workers, user="ana"),
            total_steps=act.total_steps,
            submitted_s=self._s(act.came_min),
            started_s=None if first_min is None else self._s(first_min),
            finished_s=ended_s,
            state=act.state,
            devices=devices,
            partner=self._partner(act),
            attempt=sum(bool(held) for _, held in act.held),
            num_restarts=max(sum(bool(held) for _, held in act.held) - 1, 0),
            step=done,
            step_s=act.step_s,
            exposed_s=0.14 * act.step_s,
            loss=_loss(done) if done else None,
            exit_code=None if ended_s is None else int(act.state is JobState.FAILED),
            reason=act.reason or self._reason(act, len(devices)),
        )

    def _s(self, minutes_ago: float) -> float:
        return self.begin_s - 60 * minutes_ago

    def _partner(self, act: Act) -> str | None:
        running = [one for one in PLAY if one.held and one.ended_min is None]
        same = [one for one in running if one is not act and act in running and one.held[-1][1] == act.held[-1][1]]
        return self.ids[same[0].name] if same else None

    def _reason(self, act: Act, num: int) -> str:
        if not num:
            return "waits: every device is with a job that gains more from it; goes first when one is free"
        if act.name.startswith("speech"):
            return f"takes turns on {num} devices: together they are 21 % faster than one after the other"
        if num == act.max_workers:
            return "has as many workers as it may have"
        return f"has {num} of {act.max_workers} workers: one more would save it 6 %, less than the others would lose"

    def _decision(self, at_min: float) -> Decision:
        devices, reasons = {}, {}
        for act in PLAY:
            now = [held for at, held in act.held if at >= at_min]
            if now and now[-1] and (act.ended_min is None or act.ended_min < at_min):
                devices[self.ids[act.name]] = now[-1]
            if any(at == at_min for at, _ in act.held):
                reasons[self.ids[act.name]] = self._reason(act, len(now[-1]))
        return Decision(self._s(at_min), devices, reasons)

    def jobs(self) -> list[Job]:
        """Those that run go on."""
        passed_s = time.time() - self.begin_s
        return [
            dataclasses.replace(job, step=step, loss=_loss(step))
            if job.state is JobState.RUNNING and (step := job.step + int(passed_s / job.step_s))
            else job
            for job in self.by_id.values()
        ]

    def nodes(self) -> list[NodeView]:
        held = {device: tuple(job.id for job in self.by_id.values() if device in job.devices) for device in range(8)}
        return [NodeView(0, "workstation", True, held)]

    def explain(self, job_id: str) -> list[Sentence]:
        job = self.job(job_id)
        told = [Sentence(job.submitted_s, f"submitted, for 1 to {job.spec.max_workers} workers")]
        for decision in self.made_decisions:
            if job_id in decision.reasons:
                told.append(Sentence(decision.at_s, decision.reasons[job_id]))
                told.append(Sentence(decision.at_s + 2, f"workers of attempt {len(told) // 2} started"))
        return told

    def logs(
        self, job_id: str, attempt: int | None = None, rank: int | None = None, stream: LogStream = "out"
    ) -> FakeLog:
        (job,) = (one for one in self.jobs() if one.id == job_id)
        first = max(job.step - 2000, 0) // 50 * 50
        lines = [f"step {step:6d}  loss {_loss(step):.4f}  lr 3.0e-04\n" for step in range(first, job.step, 50)]
        return FakeLog("".join(lines).encode() if stream == "out" else b"", job.attempt, rank or 0)


def _loss(step: int) -> float:
    return 0.35 + 2.6 / (1 + step / 400) + 0.0006 * math.sin(step * 1.7)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=Path(__file__).with_name("dashboard.png"))
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--job", default="gpt2-small-wikitext")
    parser.add_argument("--width", type=int, default=1600)
    parser.add_argument("--height", type=int, default=1000)
    options = parser.parse_args()
    stage = Stage()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    app = make_app(stage, TOKEN, port=port)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listener]),))
    thread.start()
    try:
        with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
            tab.view(options.width, options.height, dark=options.dark)
            tab.go(f"http://127.0.0.1:{port}/{f'#job/{stage.ids[options.job]}' if options.job else ''}")
            tab.wait_for("document.querySelector('#token')")
            tab.type_into("#token", TOKEN)
            tab.press("Enter")
            tab.wait_for("document.querySelector('#contact-text')?.textContent === 'live'")
            time.sleep(LOOKS_S)  # so that there is a curve to see
            tab.screenshot(options.out, options.width, options.height, dark=options.dark)
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
