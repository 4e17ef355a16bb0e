// One forecast of the simulator: its figures, and a row per job with the workers it would have over time.

import { element, setItems, setText } from "./elements.js";
import { duration } from "./figures.js";
import { Gantt } from "./gantt.js";
import { plain } from "./text.js";
import { elapsedTicks, Viewport } from "./viewport.js";

const ROW_PX = 22;
const MAX_ROWS = 200;

export class Forecast {
  #figures = element("dl", { class: "facts" });
  #note = element("p", { class: "range" });
  #more = element("p", { class: "range" });
  #gantt;
  #view = new Viewport(600);

  constructor(title) {
    const chart = element("div");
    this.root = element("section", { class: "forecast" }, element("h3", {}, title), this.#note, this.#figures, chart, this.#more);
    this.#gantt = new Gantt(chart, {
      label: `${title}: workers of each job over time. Arrow keys pan, plus and minus zoom, N and P step through spans.`,
      view: this.#view,
      ticks: elapsedTicks,
      tip,
      hasNow: false,
    });
  }

  /** `before`: the forecast to compare with, if any; `until_s`: where the time axis ends. */
  show(forecast, before, jobs, until_s) {
    setText(this.#note, `policy ${forecast.policy}, ${forecast.devices} device${forecast.devices === 1 ? "" : "s"}`);
    const figures = [
      ["Mean time from submission to end", known(forecast.mean_jct_s), before && changeText(forecast.mean_jct_s, before.mean_jct_s)],
      ["All jobs end in", known(forecast.makespan_s), before && changeText(forecast.makespan_s, before.makespan_s)],
    ];
    setItems(
      this.#figures,
      figures,
      ([name]) => name,
      ([name]) => element("div", {}, element("dt", {}, name), element("dd", {}, element("b"), element("span"))),
      (child, [, value, change]) => {
        setText(child.lastChild.firstChild, value);
        setText(child.lastChild.lastChild, change ? ` ${change}` : "");
      },
    );
    this.#view.show(0, until_s * 1.02);
    const rows = forecast.jobs.slice(0, MAX_ROWS).map((job) => rowOf(job, jobs));
    this.#gantt.show(until_s, rows);
    const num_more = forecast.jobs.length - rows.length;
    setText(this.#more, num_more > 0 ? `and ${num_more} more jobs` : "");
  }
}

function known(seconds) {
  return seconds === null ? "no jobs" : duration(seconds);
}

function rowOf(job, jobs) {
  const spans = job.workers
    .map(([from_s, num], index) => ({
      key: `${job.id} ${from_s}`,
      from_s,
      to_s: job.workers[index + 1]?.[0] ?? job.end_s,
      lane: 0,
      num: 1,
      color: jobs.hue(job.id),
      text: `${num}`,
      mark: null,
      workers: num,
      name: plain(job.name),
    }))
    .filter((span) => span.workers > 0 && span.to_s > span.from_s);
  return { key: job.id, label: plain(job.name), gap: 3, height: ROW_PX, spans };
}

function tip({ name, workers, from_s, to_s }) {
  return [name, `${workers} worker${workers === 1 ? "" : "s"}`, `from ${duration(from_s)} to ${duration(to_s)} from now`];
}

function changeText(value, before) {
  if (!before || !value) return "";
  const change = Math.round((value / before - 1) * 100);
  return change === 0 ? "(same)" : `(${change > 0 ? "+" : "−"}${Math.abs(change)} %)`;
}
