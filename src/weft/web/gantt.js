// A timeline on a canvas: rows of colored spans over time, with panning, zooming, and numbers on hover.
//
// Only what is visible is drawn, and spans that fall on the same pixels are drawn once, so the cost of a frame depends on
// the size of the screen, not on how much has happened.  Text from jobs is drawn, never parsed.

import { element, setAttribute, setItems } from "./elements.js";
import { isMoving, listen } from "./gestures.js";
import { Paint } from "./paint.js";

const AXIS_PX = 24;
const MIN_SPAN_PX = 3;
const NEAR_PX = 5;
const TEXT_FROM_PX = 26;
const MAX_HEIGHT_PX = 560;
const MAX_GUTTER = 0.3;

export class Gantt {
  #view;
  #ticks;
  #paint = new Paint();
  #canvas = element("canvas");
  #titles = element("div", { class: "gantt-titles" });
  #content = element("div", { class: "gantt-content" }, this.#canvas, this.#titles);
  #scroller = element("div", { class: "gantt", tabindex: "0", role: "group" }, this.#content);
  #tip = element("div", { class: "tip", role: "status", hidden: true });
  #rows = [];
  #tops = [];
  #now_s = 0;
  #longest = 0;
  #pointed = null;
  #pointer = null;
  #isDue = false;
  #hasNow;
  #onMove;
  #onOpen;

  /**
   * `view`: a Viewport; `ticks(from_s, to_s, width)`: labels of the axis; `tip(span)`: lines of text about a span;
   * `hasNow`: whether the present is marked; `onOpen(span)`: it was clicked; `onMove()`: the visible range changed.
   */
  constructor(root, { label, view, ticks, tip, hasNow = true, onOpen = () => {}, onMove = () => {} }) {
    this.#hasNow = hasNow;
    this.#view = view;
    this.#ticks = ticks;
    this.#onOpen = onOpen;
    this.#onMove = onMove;
    this.tipOf = tip;
    setAttribute(this.#scroller, "aria-label", label);
    root.append(element("div", { class: "gantt-frame" }, this.#scroller, this.#tip));
    listen(this.#scroller, this);
    this.#scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.#scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#paint.forget();
      this.draw();
    });
  }

  /** `rows`: [{ key, label, title?, height, gap, spans, isDim, slices? }] from top to bottom. */
  show(now_s, rows) {
    this.#now_s = now_s;
    this.#view.advance(now_s);
    this.#rows = rows;
    let top = AXIS_PX;
    this.#tops = rows.map((row) => {
      const own = top + row.gap;
      top = own + row.height;
      return own;
    });
    this.#longest = rows.reduce((longest, row) => Math.max(longest, row.label ? this.#paint.widthOf(row.label) : 0), 0);
    const height = Math.max(top + 6, AXIS_PX + 30);
    this.#content.style.height = `${height}px`;
    this.#scroller.style.height = `${Math.min(height, MAX_HEIGHT_PX)}px`;
    this.#showTitles();
    this.#pointAgain();
    this.draw();
  }

  /** New rows have new spans, and the present moved under the pointer. */
  #pointAgain() {
    if (this.#pointed === null) return;
    if (this.#pointer) this.point(this.spanAt(...this.#pointer), ...this.#pointer);
    else this.point(this.#all().find(({ key }) => key === this.#pointed.key) ?? null);
  }

  #all() {
    return this.#rows.flatMap((row) => (row.slices ?? [row]).flatMap(({ spans }) => spans));
  }

  /** Draw once, in the next animation frame. */
  draw() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.drawNow();
    });
  }

  drawNow() {
    const width = this.#scroller.clientWidth;
    const height = this.#scroller.clientHeight;
    if (!width || !height) return;
    const paint = this.#paint;
    paint.begin(this.#canvas, width, height);
    const [from_s, to_s] = [this.#view.from_s, this.#view.to_s];
    const left = this.gutter;
    const perSecond = (width - left) / (to_s - from_s);
    const x = (time_s) => left + (time_s - from_s) * perSecond;
    const ticks = this.#ticks(from_s, to_s, width - left);
    const scroll = this.#scroller.scrollTop;
    this.#rows.forEach((row, index) => {
      const top = Math.round(this.#tops[index] - scroll);
      if (top + row.height < AXIS_PX || top > height) return;
      paint.track(left, top, width - left, row);
      for (const { at_s } of ticks) paint.grid(x(at_s), top, row.height);
      this.#drawSpans(row, top, x, from_s, to_s, width);
      if (row.label) paint.label(row.label, left - 8, top + row.height / 2);
    });
    paint.flush();
    paint.clear(0, 0, width, AXIS_PX);
    for (const { at_s, text, isDay } of ticks) paint.tick(text, x(at_s), AXIS_PX, isDay, left, width);
    if (this.#hasNow && this.#now_s > from_s && this.#now_s < to_s) paint.now(x(this.#now_s), AXIS_PX - 4, height);
  }

  #drawSpans(row, top, x, from_s, to_s, width) {
    const left = this.gutter;
    for (const { spans, offset, share } of row.slices ?? [{ spans: row.spans, offset: 0, share: 1 }]) {
      // Several spans of a lane on the same pixels: one is enough.
      const drawnTo = [-1, -1];
      for (let index = firstAfter(spans, from_s); index < spans.length && spans[index].from_s < to_s; index++) {
        const span = spans[index];
        if (span.to_s < from_s) continue;
        const begin = Math.max(x(span.from_s), left);
        const end = x(Math.min(span.to_s, Math.max(this.#now_s, span.from_s)));
        const right = Math.min(Math.max(end, begin + MIN_SPAN_PX), width);
        const lane = Math.min(span.lane, 1);
        const isPointed = span === this.#pointed;
        if (right - drawnTo[lane] < 1 && !isPointed) continue;
        drawnTo[lane] = right;
        const height = (row.height * share) / span.num;
        // Whole pixels: crisp, and several times cheaper than blended edges.
        const y = Math.round(top + row.height * offset + span.lane * height);
        const box = { left: Math.round(begin), top: y, width: Math.round(right) - Math.round(begin), height: Math.round(height) };
        const showsStart = x(span.from_s) >= left;
        paintSpan(this.#paint, span, box, { isPointed, isSliced: Boolean(row.slices), showsStart });
      }
    }
  }

  /** Width of the labels on the left. */
  get gutter() {
    return this.#longest ? Math.min(Math.ceil(this.#longest) + 12, this.#scroller.clientWidth * MAX_GUTTER) : 0;
  }

  isPointedAt(span) {
    return span !== null && span === this.#pointed;
  }

  /** Headings are elements: they can be reached with the keyboard and read aloud. */
  #showTitles() {
    const titled = this.#rows.map((row, index) => ({ row, top: this.#tops[index] })).filter(({ row }) => row.title);
    setItems(this.#titles, titled, ({ row }) => row.key, ({ row }) => row.title, (child, { row, top }) => {
      child.style.top = `${top - row.gap + 4}px`;
    });
  }

  /** The share of the visible range at a horizontal position. */
  shareAt(client_x) {
    const box = this.#scroller.getBoundingClientRect();
    const width = this.#scroller.clientWidth - this.gutter;
    return Math.min(Math.max((client_x - box.left - this.gutter) / width, 0), 1);
  }

  /** What is at a position, or close to it. */
  spanAt(client_x, client_y) {
    const box = this.#scroller.getBoundingClientRect();
    const y = client_y - box.top + this.#scroller.scrollTop;
    if (client_y - box.top < AXIS_PX) return null;
    const index = this.#rows.findIndex((row, one) => y >= this.#tops[one] && y < this.#tops[one] + row.height);
    if (index < 0) return null;
    const row = this.#rows[index];
    const inRow = (y - this.#tops[index]) / row.height;
    const spans = row.slices ? row.slices[Math.min(Math.floor(inRow * row.slices.length), row.slices.length - 1)].spans : row.spans;
    const inSlice = row.slices ? (inRow * row.slices.length) % 1 : inRow;
    const perPixel_s = this.#view.length_s / Math.max(this.#scroller.clientWidth - this.gutter, 1);
    const time_s = this.#view.from_s + this.shareAt(client_x) * this.#view.length_s;
    return nearest(spans, time_s, inSlice, NEAR_PX * perPixel_s, this.#now_s);
  }

  /** Point at a span (null for none) and describe it, near a position. */
  point(span, client_x = null, client_y = null) {
    this.#pointer = client_x === null ? null : [client_x, client_y];
    if (span !== this.#pointed) {
      this.#pointed = span;
      this.draw();
    }
    this.#tip.hidden = span === null;
    setAttribute(this.#scroller, "class", span ? "gantt pointing" : "gantt");
    if (span === null) return;
    setItems(this.#tip, this.tipOf(span), (line) => line, (line) => element("p", {}, line), () => {});
    const box = this.#scroller.getBoundingClientRect();
    const [at_x, at_y] = client_x === null ? this.#positionOf(span, box) : [client_x - box.left, client_y - box.top];
    const wide = this.#tip.offsetWidth;
    this.#tip.style.left = `${Math.max(Math.min(at_x + 14, box.width - wide - 4), 4)}px`;
    this.#tip.style.top = `${at_y + 18}px`;
  }

  #positionOf(span, box) {
    const share = (Math.max(span.from_s, this.#view.from_s) - this.#view.from_s) / this.#view.length_s;
    const index = this.#rows.findIndex((row) => (row.slices ?? [row]).some(({ spans }) => spans.includes(span)));
    const y = this.#tops[index] + this.#rows[index].height - this.#scroller.scrollTop;
    return [this.gutter + share * (box.width - this.gutter), y];
  }

  /** The span after (or before) the one pointed at, among all rows; scrolls and pans to it. */
  pointNext(direction) {
    const inView = this.#all().filter((span) => span.to_s > this.#view.from_s && span.from_s < this.#view.to_s);
    if (!inView.length) return;
    const at = this.#pointed ? inView.indexOf(this.#pointed) : direction > 0 ? -1 : 0;
    const span = inView[(at + direction + inView.length) % inView.length];
    const index = this.#rows.findIndex((row) => (row.slices ?? [row]).some(({ spans }) => spans.includes(span)));
    const top = this.#tops[index];
    const { scrollTop, clientHeight } = this.#scroller;
    if (top < scrollTop + AXIS_PX || top + this.#rows[index].height > scrollTop + clientHeight) {
      this.#scroller.scrollTop = top - AXIS_PX - 8;
    }
    this.point(span);
  }

  openPointed() {
    if (this.#pointed) this.#onOpen(this.#pointed);
  }

  pan(share) {
    this.#view.pan(share);
    this.#moved();
  }

  zoom(factor, at) {
    this.#view.zoom(factor, at);
    this.#moved();
  }

  follow(length_s) {
    this.#view.follow(length_s);
    this.#moved();
  }

  #moved() {
    if (!isMoving(this.#scroller)) this.point(null);
    this.draw();
    this.#onMove();
  }
}

function paintSpan(paint, span, box, { isPointed, isSliced, showsStart }) {
  paint.block(span.color, box, isPointed);
  if (isSliced) return;
  const mark = showsStart ? span.mark : null;
  if (mark && box.width > 8 && box.height > 8) paint.mark(mark, box.left + 5, box.top, box.height);
  if (box.width > TEXT_FROM_PX && box.height > 9) {
    const indent = mark ? 15 : 7;
    paint.text(span.text, box.left + indent, box.top + box.height / 2, box.width - indent - 4, box.height);
  }
}

const reaches = new WeakMap();

/** The index of the first span that may still run at that time.  One job can outlast several that share its device. */
function firstAfter(spans, time_s) {
  let reach = reaches.get(spans);
  if (!reach) {
    let latest_s = -Infinity;
    reach = Float64Array.from(spans, (span) => (latest_s = Math.max(latest_s, span.to_s)));
    reaches.set(spans, reach);
  }
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (reach[middle] < time_s) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(spans, time_s, inRow, tolerance_s, now_s) {
  let [found, distance_s] = [null, tolerance_s];
  for (let index = firstAfter(spans, time_s - tolerance_s); index < spans.length; index++) {
    const span = spans[index];
    if (span.from_s > time_s + tolerance_s) break;
    if (Math.min(Math.floor(inRow * span.num), span.num - 1) !== span.lane) continue;
    const to_s = Math.min(span.to_s, Math.max(now_s, span.from_s));
    const away_s = Math.max(span.from_s - time_s, time_s - to_s, 0);
    if (away_s < distance_s) [found, distance_s] = [span, away_s];
  }
  return found;
}
