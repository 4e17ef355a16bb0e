// Drawing primitives of a timeline: colors from the style sheet, text cut to the available space.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

const EDGE_PX = 3;

function fontOf(size) {
  return `${size}px ${FONT}`;
}

export class Paint {
  #context = null;
  #colors = null;
  #blocks = new Map();
  #widths = new Map();
  #boxes = new Map();
  #marks = [];
  #large = [];
  #small = [];

  /** Look up the colors again: the theme changed. */
  forget() {
    this.#colors = null;
    this.#blocks.clear();
  }

  begin(canvas, width, height) {
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      [canvas.width, canvas.height] = [w, h];
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      this.#context = null;
    }
    this.#context ??= canvas.getContext("2d");
    this.#context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#context.clearRect(0, 0, width, height);
    this.#context.textBaseline = "middle";
  }

  get #palette() {
    if (!this.#colors) {
      const names = ["surface", "track", "line", "ink", "soft", "accent", "block", "edge", "bad-ground"];
      this.#colors = Object.fromEntries(names.map((name) => [name, this.#value(`--${name}`)]));
      this.#colors.blockChroma = this.#value("--block-chroma");
      this.#colors.edgeChroma = this.#value("--edge-chroma");
    }
    return this.#colors;
  }

  #value(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  /** Fill and edge of a job's color. */
  #colorsOf(color) {
    let pair = this.#blocks.get(color);
    if (!pair) {
      const { block, edge, blockChroma, edgeChroma } = this.#palette;
      const hue = this.#value(`--hue${color}`);
      pair = [`oklch(${block} ${blockChroma} ${hue})`, `oklch(${edge} ${edgeChroma} ${hue})`];
      this.#blocks.set(color, pair);
    }
    return pair;
  }

  clear(left, top, width, height) {
    this.#context.fillStyle = this.#palette.surface;
    this.#context.fillRect(left, top, width, height);
  }

  track(left, top, width, { height, isDim }) {
    this.#context.fillStyle = isDim ? this.#palette["bad-ground"] : this.#palette.track;
    this.#context.fillRect(left, top, width, height);
  }

  grid(x, top, height) {
    this.#context.fillStyle = this.#palette.line;
    this.#context.fillRect(Math.round(x), top, 1, height);
  }

  /** Drawn by `flush`, all of one color together: changing the color costs more than a rectangle. */
  block(color, box, isPointed) {
    const key = isPointed ? `${color}!` : color;
    const boxes = this.#boxes.get(key);
    if (boxes) boxes.push(box);
    else this.#boxes.set(key, [box]);
  }

  /** At the start of a span: it has more workers than before, fewer, or as many. */
  mark(kind, left, top, height) {
    this.#marks.push({ kind, left, middle: top + (height - 1) / 2 });
  }

  text(text, left, middle, width, height) {
    (height > 15 ? this.#large : this.#small).push({ text, left, middle, width });
  }

  flush() {
    for (const [key, boxes] of this.#boxes) this.#fill(String(key), boxes);
    this.#boxes.clear();
    this.#context.fillStyle = this.#palette.ink;
    this.#context.textAlign = "left";
    for (const mark of this.#marks.splice(0)) this.#shape(mark);
    this.#write(this.#large.splice(0), 12);
    this.#write(this.#small.splice(0), 10);
  }

  #fill(key, boxes) {
    const [fill, edge] = this.#colorsOf(Number.parseInt(key, 10));
    const context = this.#context;
    context.fillStyle = key.endsWith("!") ? edge : fill;
    for (const { left, top, width, height } of boxes) {
      if (width > EDGE_PX) context.fillRect(left + EDGE_PX, top, width - EDGE_PX - 1, height > 5 ? height - 1 : height);
    }
    context.fillStyle = edge;
    for (const { left, top, width, height } of boxes) {
      context.fillRect(left, top, Math.min(EDGE_PX, width), height > 5 ? height - 1 : height);
    }
  }

  #shape({ kind, left, middle }) {
    const context = this.#context;
    context.beginPath();
    if (kind === "restarted") context.arc(left + 3.5, middle, 2.5, 0, 2 * Math.PI);
    else {
      const tip = kind === "grew" ? -3 : 3;
      context.moveTo(left, middle - tip);
      context.lineTo(left + 7, middle - tip);
      context.lineTo(left + 3.5, middle + tip);
    }
    context.fill();
  }

  #write(texts, size) {
    if (!texts.length) return;
    const cut = texts.map((one) => this.#cut(one.text, one.width, size));
    this.#context.font = fontOf(size);
    texts.forEach(({ left, middle }, index) => {
      if (cut[index]) this.#context.fillText(cut[index], left, middle);
    });
  }

  label(text, right, middle) {
    const shown = this.#cut(text, right, 12);
    this.#context.font = fontOf(12);
    this.#context.fillStyle = this.#palette.soft;
    this.#context.textAlign = "right";
    this.#context.fillText(shown, right, middle);
  }

  tick(text, x, height, isDay, left, right) {
    const half = this.widthOf(text) / 2;
    const at = Math.min(Math.max(x, left + half), right - half);
    this.#context.font = isDay ? `600 ${fontOf(12)}` : fontOf(12);
    this.#context.fillStyle = this.#palette.soft;
    this.#context.textAlign = "center";
    this.#context.fillText(text, at, height / 2);
  }

  now(x, top, height) {
    this.#context.fillStyle = this.#palette.accent;
    this.#context.fillRect(Math.round(x) - 0.5, top, 1.5, height - top);
  }

  widthOf(text, size = 12) {
    const key = `${size} ${text}`;
    let width = this.#widths.get(key);
    if (width === undefined) {
      if (this.#widths.size > 5000) this.#widths.clear();
      const context = this.#context ?? document.createElement("canvas").getContext("2d");
      context.font = fontOf(size);
      width = context.measureText(text).width;
      this.#widths.set(key, width);
    }
    return width;
  }

  #cut(text, width, size) {
    const whole = this.widthOf(text, size);
    if (whole <= width) return text;
    // Letters differ in width: the first guess may be a little too long.
    for (let kept = Math.floor((text.length * width) / whole); kept > 1; kept--) {
      const shorter = `${text.slice(0, kept)}…`;
      if (this.widthOf(shorter, size) <= width) return shorter;
    }
    return "";
  }
}
