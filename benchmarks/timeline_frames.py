"""How fast the dashboard's timeline moves: frames per second in Chromium while panning and zooming.

Runs in a checkout (it uses the tests' browser).  The bars are made up; the dashboard that draws them is the real one,
served by a real controller.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

SIZE = (1600, 1000)
_CODE = """
(async () => {
  const [num_bars, num_devices, num_frames] = NUMBERS;
  const { Gantt } = await import("/web/gantt.js");
  const { byDevice } = await import("/web/timeline.js");
  const { clockTicks, Viewport } = await import("/web/viewport.js");
  const now_s = Date.now() / 1000;
  const each_s = 86400 / (num_bars / num_devices);
  const bars = Array.from({ length: num_bars }, (_, index) => {
    const start_s = now_s - 86400 + Math.floor(index / num_devices) * each_s;
    const end_s = start_s + each_s * (0.3 + 0.69 * ((index * 7919) % 100) / 100);
    const device = `node/${index % num_devices}`;
    return { job: `job${index}`, name: `job ${index}`, attempt: 1, start_s, end_s, devices: [device], workers: 1 };
  });
  const begin_ms = performance.now();
  const rows = [...byDevice(bars)].map(([name, spans]) => {
    spans.forEach((span, index) => Object.assign(span, { color: index % 12, text: span.bar.name, mark: null }));
    return { key: name, label: name, gap: 2, height: 6, spans };
  });
  const layout_ms = performance.now() - begin_ms;
  const root = document.createElement("div");
  document.getElementById("devices").replaceChildren(root);
  const options = { label: "bars", view: new Viewport(86400), ticks: clockTicks, tip: (span) => [span.text] };
  const gantt = new Gantt(root, options);
  gantt.show(now_s, rows);
  const frames_ms = [];
  await new Promise((done) => {
    let last_ms = performance.now();
    const next = () => {
      const time_ms = performance.now();
      frames_ms.push(time_ms - last_ms);
      last_ms = time_ms;
      if (frames_ms.length > num_frames) return done();
      if (frames_ms.length % 2) gantt.zoom(frames_ms.length % 40 < 20 ? 0.98 : 1 / 0.98);
      else gantt.pan(frames_ms.length % 80 < 40 ? -0.002 : 0.002);
      requestAnimationFrame(next);
    };
    requestAnimationFrame(next);
  });
  return { layout_ms, frames_ms: frames_ms.slice(1) };
})()
"""


def measure(num_bars: int, num_devices: int, num_frames: int) -> dict[str, Any]:
    """Times of one run."""
    from tests.page_site import open_site

    code = _CODE.replace("NUMBERS", json.dumps([num_bars, num_devices, num_frames]))
    with tempfile.TemporaryDirectory() as folder, open_site(Path(folder)) as site:
        site.tab.view(*SIZE)
        site.log_in()
        site.tab.call("Performance.enable", timeDomain="threadTicks")
        before = _thread_s(site.tab.call("Performance.getMetrics"))
        found = site.tab.run(code)
        thread_s = _thread_s(site.tab.call("Performance.getMetrics")) - before
    frames = sorted(found["frames_ms"])
    median_ms = frames[len(frames) // 2]
    return {
        "bars": num_bars,
        "devices": num_devices,
        "frames": len(frames),
        "frame_median_ms": round(median_ms, 1),
        "frame_p95_ms": round(frames[int(len(frames) * 0.95)], 1),
        "frames_per_s": round(1000 / median_ms, 1),
        "main_thread_ms_per_frame": round(1000 * thread_s / len(frames), 1),
        "layout_ms": round(found["layout_ms"], 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _thread_s(answer: dict[str, Any]) -> float:
    """CPU time of the page's main thread."""
    return float(next(one["value"] for one in answer["metrics"] if one["name"] == "TaskDuration"))
