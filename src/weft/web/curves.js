// The curves of one job, or of two overlaid: what was measured over their whole life.

import { Curve } from "./curve.js";
import { choices, element, setItems, setText } from "./elements.js";
import { count, duration, loss, memory, percent, rate, stepTime } from "./figures.js";

const METRICS = [
  { key: "loss", title: "Loss", format: loss, mayBeLog: true },
  { key: "step_s", title: "Step time", format: (value) => stepTime(value) || "0", fromZero: true, mayBeLog: true },
  { key: "steps_per_s", title: "Throughput (steps)", format: rate, fromZero: true },
  { key: "exposed_share", title: "Exposed communication", format: percent, fromZero: true },
  { key: "workers", title: "Workers", format: (value) => String(Math.round(value)), isStepped: true, fromZero: true },
  { key: "memory_bytes", title: "Peak memory of a worker", format: memory, fromZero: true },
];
const MARKS = { resized: "resized", restarted: "restarted", paired: "paired", unpaired: "pair split" };
const BREAKS = ["resized", "restarted"];
const AXES = [["time", "Time"], ["step", "Steps"]];
const KEY_SHARE = 0.02;

export class Curves {
  #curves = METRICS.map((metric) => new Curve(metric));
  #axis = "time";
  #note = element("p", { class: "range" });
  #legend = element("ul", { class: "legend" });
  #empty = element("p", { class: "empty" });
  #grid = element("div", { class: "curves", tabindex: "0", role: "group" }, ...this.#curves.map((curve) => curve.root));
  #shown = [];
  #range = [0, 1];
  #at = null;

  constructor(label = "Curves") {
    this.#grid.setAttribute("aria-label", `${label}. Left and right arrow keys read values.`);
    const axes = element("div", { class: "choices", role: "group", "aria-label": "Horizontal axis" });
    choices(axes, AXES, this.#axis, (axis) => {
      this.#axis = axis;
      this.#at = null;
      this.show(this.#shown);
    });
    this.#axes = axes;
    const head = element("div", { class: "card-head" }, element("h3", {}, label), axes);
    this.root = element("section", {}, head, this.#empty, this.#grid, this.#note, this.#legend);
    this.#listen();
  }

  #axes;

  #listen() {
    for (const curve of this.#curves) {
      curve.root.addEventListener("pointermove", (event) => this.#read(curve.shareAt(event.clientX)));
    }
    this.#grid.addEventListener("pointerleave", () => this.#read(null));
    this.#grid.addEventListener("blur", () => this.#read(null));
    this.#grid.addEventListener("keydown", (event) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!direction) return;
      event.preventDefault();
      this.#read(Math.min(Math.max((this.#at ?? 1) + direction * KEY_SHARE, 0), 1));
    });
  }

  /** `shown`: [{ history, color, name }], with histories from `/v1/jobs/ID/history`. */
  show(shown) {
    this.#shown = shown;
    const ready = shown.filter(({ history }) => history.points.length);
    this.#grid.hidden = this.#axes.hidden = ready.length === 0;
    setText(this.#empty, ready.length ? "" : "No measurements. Scripts that use weft.session() report them.");
    const xs = ready.flatMap(({ history }) => history.points.map((point) => this.#x(history, point)));
    this.#range = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
    for (const curve of this.#curves) {
      const series = ready.map(({ history, color }) => ({
        color,
        points: this.#pointsOf(history, curve.metric.key),
        breaks: this.#breaksOf(history),
      }));
      curve.show(series.filter(({ points }) => points.length), this.#marksOf(ready), this.#range);
    }
    this.#showLegend(ready);
    this.#read(this.#at);
  }

  #x(history, point) {
    return this.#axis === "step" ? point.step : point.time_s - beginOf(history);
  }

  #pointsOf(history, key) {
    return history.points.filter((point) => point[key] !== null).map((point) => [this.#x(history, point), point[key]]);
  }

  /** Where attempts ended. */
  #breaksOf(history) {
    return history.marks.filter(({ kind }) => BREAKS.includes(kind)).map((mark) => this.#markX(history, mark));
  }

  /** For one job only: with two, it would be unclear which marks belong to which job. */
  #marksOf(ready) {
    if (ready.length !== 1) return [];
    const { history } = ready[0];
    return history.marks
      .filter((mark) => mark.kind in MARKS)
      .map((mark) => ({ x: this.#markX(history, mark), kind: mark.kind, text: mark.text }))
      .filter(({ x }) => x >= this.#range[0] && x <= this.#range[1]);
  }

  #markX(history, mark) {
    if (this.#axis === "time") return mark.time_s - beginOf(history);
    return (history.points.findLast((point) => point.time_s <= mark.time_s) ?? history.points[0]).step;
  }

  #showLegend(ready) {
    const kinds = new Map();
    for (const { kind } of this.#marksOf(ready)) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
    const items = [
      ...(ready.length > 1 ? ready.map(({ name, color }) => ({ key: name + color, swatch: `swatch ${color}`, text: name })) : []),
      ...[...kinds].map(([kind, num]) => ({ key: kind, swatch: `mark-key mark-${kind}`, text: `${MARKS[kind]}${num > 1 ? `, ${num} times` : ""}` })),
    ];
    setItems(
      this.#legend,
      items,
      ({ key }) => key,
      ({ swatch }) => element("li", {}, element("span", { class: swatch, "aria-hidden": "true" }), element("bdi")),
      (child, { text }) => setText(child.lastChild, text),
    );
  }

  #read(share) {
    this.#at = share;
    const [first, last] = this.#range;
    const x = share === null ? null : first + share * (last - first);
    for (const curve of this.#curves) curve.read(x);
    const text = this.#axis === "step" ? (value) => `step ${count(Math.round(value))}` : duration;
    if (this.#grid.hidden) setText(this.#note, "");
    else if (x === null) setText(this.#note, `${text(first)} to ${text(last)}${this.#axis === "time" ? " after the start" : ""}`);
    else setText(this.#note, [`at ${text(x)}`, ...this.#textsAt(x)].join(" · "));
  }

  /** What happened close to the position of the cursor. */
  #textsAt(x) {
    const near = (this.#range[1] - this.#range[0]) * KEY_SHARE;
    const ready = this.#shown.filter(({ history }) => history.points.length);
    return this.#marksOf(ready).filter((mark) => Math.abs(mark.x - x) <= near).map(({ text }) => text);
  }
}

/** Both jobs of a comparison start at 0. */
function beginOf(history) {
  const started = history.marks.find((mark) => mark.kind === "started");
  return Math.min(started?.time_s ?? Infinity, history.points[0]?.time_s ?? Infinity);
}
