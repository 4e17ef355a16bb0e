// The visible time range of a timeline, and the labels of its axis.  Pure: takes numbers, returns numbers and text.

const MIN_LENGTH_S = 2;
const MAX_LENGTH_S = 400 * 86400;
// Room to the right of now, so that the current moment is not at the edge.
const AHEAD = 0.02;
const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000,
];
const LABEL_PX = 84;

/** A range of time that follows the present until someone looks at the past. */
export class Viewport {
  #length_s;
  #end_s = 0;
  #now_s = 0;
  isLive = true;

  constructor(length_s) {
    this.#length_s = length_s;
  }

  get length_s() {
    return this.#length_s;
  }

  get from_s() {
    return this.to_s - this.#length_s;
  }

  get to_s() {
    return this.isLive ? this.#now_s + AHEAD * this.#length_s : this.#end_s;
  }

  /** Time has passed. */
  advance(now_s) {
    this.#now_s = now_s;
  }

  /** The last `length_s` seconds, from now on. */
  follow(length_s = this.#length_s) {
    this.isLive = true;
    this.#length_s = bounded(length_s);
  }

  /** A fixed range. */
  show(from_s, to_s) {
    this.isLive = false;
    this.#length_s = bounded(to_s - from_s);
    this.#end_s = to_s;
  }

  /** Move by a share of the visible range: positive is later.  Reaching the present follows it again. */
  pan(share) {
    const end_s = this.to_s + share * this.#length_s;
    this.isLive = end_s >= this.#now_s + AHEAD * this.#length_s;
    this.#end_s = end_s;
  }

  /** `factor` < 1 shows less.  `at`: the share of the width that stays in place; while live, the present does. */
  zoom(factor, at = 0.5) {
    const to_s = this.to_s;
    const length_s = bounded(this.#length_s * factor);
    if (!this.isLive) this.#end_s = to_s - (1 - at) * (this.#length_s - length_s);
    this.#length_s = length_s;
    if (!this.isLive) this.pan(0);
  }
}

function bounded(length_s) {
  return Math.min(Math.max(length_s, MIN_LENGTH_S), MAX_LENGTH_S);
}

/** Labels on round times of day: [{ at_s, text, isDay }]. */
export function clockTicks(from_s, to_s, width_px) {
  const step_s = stepFor(to_s - from_s, width_px);
  const zone_s = new Date(from_s * 1000).getTimezoneOffset() * -60;
  const first = Math.ceil((from_s + zone_s) / step_s) * step_s - zone_s;
  const ticks = [];
  for (let at_s = first; at_s <= to_s; at_s += step_s) ticks.push({ at_s, ...clockText(at_s, step_s) });
  return ticks;
}

function clockText(at_s, step_s) {
  const date = new Date(at_s * 1000);
  const [h, min, s] = [date.getHours(), date.getMinutes(), date.getSeconds()].map((one) => String(one).padStart(2, "0"));
  const isDay = step_s >= 86400 || (h === "00" && min === "00" && s === "00");
  if (isDay) return { text: date.toLocaleDateString("en-US", { month: "short", day: "numeric" }), isDay };
  return { text: step_s < 60 ? `${h}:${min}:${s}` : `${h}:${min}`, isDay };
}

/** Labels on round durations from 0: [{ at_s, text }]. */
export function elapsedTicks(from_s, to_s, width_px) {
  const step_s = stepFor(to_s - from_s, width_px);
  const ticks = [];
  for (let at_s = Math.ceil(from_s / step_s) * step_s; at_s <= to_s; at_s += step_s) {
    ticks.push({ at_s, text: elapsedText(at_s, step_s), isDay: false });
  }
  return ticks;
}

function elapsedText(at_s, step_s) {
  if (at_s === 0) return "0";
  if (step_s >= 86400) return `${Math.round(at_s / 86400)} d`;
  if (step_s >= 3600) return `${Number((at_s / 3600).toFixed(1))} h`;
  return step_s >= 60 ? `${Math.round(at_s / 60)} min` : `${Math.round(at_s)} s`;
}

function stepFor(length_s, width_px) {
  const wanted_s = (length_s * LABEL_PX) / Math.max(width_px, 1);
  return STEPS_S.find((step_s) => step_s >= wanted_s) ?? Math.ceil(wanted_s / 2592000) * 2592000;
}
