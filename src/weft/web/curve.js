// One chart: lines over time or steps, with marks where the job changed.  What it shows comes from `curves.js`.

import { drawing, element, setAttribute, setItems, setText } from "./elements.js";

const HEIGHT = 100;
const MARGIN = 5;
// A positive curve that spans more than this factor is drawn on a logarithmic scale.
const LOG_FROM = 30;
// Points this many times further apart than usual are not connected.
const GAP = 12;

export class Curve {
  #svg;
  #high = element("span");
  #low = element("span");
  #value = element("output");
  #title = element("h4");
  #lines = drawing("g");
  #marks = drawing("g");
  #dots = drawing("g");
  #cross = drawing("line", { class: "cross", y1: "0", y2: HEIGHT });
  #bounds = { x: [0, 1], y: [0, 1] };
  #isLog = false;
  #series = [];

  /** `metric`: { title, format, isStepped, fromZero, mayBeLog }. */
  constructor(metric) {
    this.metric = metric;
    const stretched = { viewBox: `0 0 100 ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.#svg = drawing("svg", stretched, this.#marks, this.#lines, this.#cross, this.#dots);
    const scale = element("div", { class: "scale", "aria-hidden": "true" }, this.#high, this.#low);
    const heading = element("div", { class: "curve-head" }, this.#title, this.#value);
    this.root = element("div", { class: "curve" }, heading, element("div", { class: "plot" }, scale, this.#svg));
    this.root.hidden = true;
  }

  /** `series`: [{ color, points: [[x, y]], breaks: [x] }], where no line crosses a break; `marks`: [{ x, kind }]; `range`: the smallest and largest x of all curves. */
  show(series, marks, range) {
    this.#series = series;
    const values = series.flatMap((one) => one.points.map(([, y]) => y));
    this.root.hidden = values.length === 0;
    if (this.root.hidden) return;
    const [smallest, high] = extremes(values);
    this.#isLog = Boolean(this.metric.mayBeLog) && smallest > 0 && high / smallest > LOG_FROM;
    const low = this.metric.fromZero && !this.#isLog ? Math.min(smallest, 0) : smallest;
    this.#bounds = { x: range, y: [this.#scaled(low), this.#scaled(high)] };
    setText(this.#title, this.#isLog ? `${this.metric.title} (log scale)` : this.metric.title);
    setItems(this.#lines, series.map((one, index) => ({ ...one, index })), (one) => one.index, makeLine, (child, one) => {
      setAttribute(child, "class", `line ${one.color}${one.points.length === 1 ? " line-dot" : ""}`);
      setAttribute(child, "d", this.#path(one));
    });
    setItems(this.#marks, marks.map((mark, index) => ({ ...mark, index })), (mark) => mark.index, makeMark, (child, mark) => {
      setAttribute(child, "class", `mark mark-${mark.kind}`);
      setAttribute(child, "x1", this.#x(mark.x));
      setAttribute(child, "x2", this.#x(mark.x));
    });
    setText(this.#high, this.metric.format(high));
    setText(this.#low, this.metric.format(low));
  }

  #x(x) {
    const [first, last] = this.#bounds.x;
    return (last > first ? (100 * (x - first)) / (last - first) : 50).toFixed(2);
  }

  #y(y) {
    const [low, high] = this.#bounds.y;
    return (HEIGHT - MARGIN - ((HEIGHT - 2 * MARGIN) * (this.#scaled(y) - low)) / (high - low || 1)).toFixed(2);
  }

  #scaled(y) {
    return this.#isLog ? Math.log(y) : y;
  }

  #path({ points, breaks }) {
    const longest = longestStep(points);
    const isFirst = points.map(([x], index) => {
      if (!index) return true;
      const [before] = points[index - 1];
      // The job waited or restarted: nothing was measured in between.
      return x - before > longest || breaks.some((at) => before <= at && at < x);
    });
    return points
      .map(([x, y], index) => {
        const place = `${this.#x(x)} ${this.#y(y)}`;
        if (!isFirst[index]) return this.metric.isStepped ? `H${this.#x(x)}V${this.#y(y)}` : `L${place}`;
        // A single measurement is a dot: a line of no length with round ends.
        return isFirst[index + 1] ?? true ? `M${place}h0` : `M${place}`;
      })
      .join("");
  }

  /** Read the values at `x`; without it, the last ones. */
  read(x) {
    if (this.root.hidden) return;
    const found = this.#series.map(({ points }) => (x === null ? points.at(-1) : at(points, x))).filter(Boolean);
    setText(this.#value, found.map(([, y]) => this.metric.format(y)).join(" / "));
    setAttribute(this.#cross, "class", x === null ? "cross away" : "cross");
    const shown = x === null ? [] : found;
    if (x !== null) {
      setAttribute(this.#cross, "x1", this.#x(x));
      setAttribute(this.#cross, "x2", this.#x(x));
    }
    setItems(this.#dots, shown.map((point, index) => ({ point, index })), (one) => one.index, makeDot, (child, { point }) => {
      const place = `M${this.#x(point[0])} ${this.#y(point[1])}h0`;
      setAttribute(child, "d", place);
    });
  }

  /** The share of the width at a horizontal position. */
  shareAt(client_x) {
    const box = this.#svg.getBoundingClientRect();
    return Math.min(Math.max((client_x - box.left) / Math.max(box.width, 1), 0), 1);
  }
}

function makeLine() {
  return drawing("path");
}

function makeMark() {
  return drawing("line", { y1: "0", y2: HEIGHT });
}

/** Round whatever the chart's proportions: a line of no length with round ends. */
function makeDot() {
  return drawing("path", { class: "dot-at" });
}

function longestStep(points) {
  const steps = points.slice(1).map(([x], index) => x - points[index][0]).sort((a, b) => a - b);
  return steps.length ? GAP * steps[steps.length >> 1] : 0;
}

function extremes(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return high > low ? [low, high] : [low, low + (Math.abs(low) || 1)];
}

/** The point measured last before `x`, or the first one. */
function at(points, x) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle + 1;
    else high = middle;
  }
  return points[Math.max(low - 1, 0)];
}
