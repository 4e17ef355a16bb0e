// The devices over time: one row per device, grouped by node.  A node can be collapsed to one row.

import { ask } from "./api.js";
import { choices, element, markChoice, setAttribute, setItems, setText } from "./elements.js";
import { duration, moment } from "./figures.js";
import { Gantt } from "./gantt.js";
import { addressOf } from "./jobs.js";
import { plain } from "./text.js";
import { clockTicks, Viewport } from "./viewport.js";

const RANGES = [[600, "10 min"], [3600, "1 h"], [21600, "6 h"], ["all", "All"]];
const LABEL = "Timeline of devices. Arrow keys pan, plus and minus zoom, N and P step through jobs, Enter opens one, End returns to the present.";
const KEY = ["▲ more workers", "▼ fewer workers", "● restarted", "Drag to pan; Ctrl and wheel, or pinch, to zoom"];
// With more devices than this, rows are thinner, and nodes start collapsed.
const MANY = 16;
const COLLAPSED = 40;
const TITLE_PX = 28;
const ROW_PX = 26;
const THIN_PX = 15;
const MAX_SPOKEN = 64;

export class Devices {
  #timeline;
  #view = new Viewport(RANGES[0][0]);
  #gantt;
  #ranges;
  #now = element("button", { type: "button", class: "quiet" }, "Now");
  #spoken = element("ul", { class: "spoken", "aria-label": "Devices now" });
  #empty = element("p", { class: "empty" });
  #titles = new Map();
  #isOpen = new Map();
  #decorated = "";
  #last = null;

  constructor(timeline, mayChange) {
    this.#timeline = timeline;
    this.mayChange = mayChange;
    const root = document.getElementById("devices");
    this.#gantt = new Gantt(root, {
      label: LABEL,
      view: this.#view,
      ticks: clockTicks,
      tip: (span) => this.#tip(span),
      onOpen: (span) => (location.hash = addressOf(span.bar.job)),
      onMove: () => this.#moved(),
    });
    const key = element("p", { class: "gantt-key" }, ...KEY.map((text) => element("span", {}, text)));
    root.append(key, this.#empty, this.#spoken);
    this.#addControls();
  }

  #addControls() {
    const ranges = element("div", { class: "choices", role: "group", "aria-label": "Time range" });
    this.#ranges = choices(ranges, RANGES, RANGES[0][0], (length) => {
      if (length === "all") void this.#showAll();
      else this.#gantt.follow(length);
    });
    const zoom = element("div", { class: "choices", role: "group", "aria-label": "Zoom" });
    const button = (text, label, action) => {
      const made = element("button", { type: "button", "aria-label": label, title: label }, text);
      made.addEventListener("click", action);
      return made;
    };
    zoom.append(
      button("←", "Earlier", () => this.#gantt.pan(-0.5)),
      button("−", "Zoom out", () => this.#gantt.zoom(2)),
      button("+", "Zoom in", () => this.#gantt.zoom(0.5)),
      button("→", "Later", () => this.#gantt.pan(0.5)),
    );
    this.#now.addEventListener("click", () => this.#gantt.follow());
    document.getElementById("devices-tools").append(this.#now, zoom, ranges);
    this.#moved();
  }

  show(now_s, nodes, jobs) {
    this.#last = [now_s, nodes, jobs];
    this.#decorate(jobs);
    const num = nodes.all.reduce((sum, node) => sum + node.devices.length, 0);
    const height = num > MANY ? THIN_PX : ROW_PX;
    const rows = nodes.all.flatMap((node) => this.#rowsOf(node, nodes, num, height));
    this.#gantt.show(now_s, rows);
    setText(this.#empty, num ? "" : "No devices. Add nodes to the cluster, or start the controller with --devices.");
    this.#speak(nodes, jobs);
  }

  #rowsOf(node, nodes, num, height) {
    const title = this.#titleOf(node, num);
    const isOpen = this.#isOpen.get(node.node) ?? num <= COLLAPSED;
    title.show(node, nodes.kind(node), isOpen);
    const spans = node.devices.map(({ name }) => this.#timeline.spans(name));
    const isDim = !node.up;
    if (!isOpen) {
      const share = 1 / spans.length;
      const slices = spans.map((own, index) => ({ spans: own, offset: index * share, share }));
      return [{ key: `node${node.node}`, title: title.root, gap: TITLE_PX, height: ROW_PX, slices, isDim }];
    }
    return [
      { key: `node${node.node}`, title: title.root, gap: TITLE_PX, height: 0, spans: [] },
      ...node.devices.map(({ name }, index) => {
        const label = name.slice(name.lastIndexOf("/") + 1);
        return { key: name, label, gap: index ? 3 : 0, height, spans: spans[index], isDim };
      }),
    ];
  }

  #titleOf(node, num) {
    let title = this.#titles.get(node.node);
    if (!title) {
      title = new NodeTitle(node, this.mayChange, () => {
        this.#isOpen.set(node.node, !(this.#isOpen.get(node.node) ?? num <= COLLAPSED));
        this.#again();
      });
      this.#titles.set(node.node, title);
    }
    return title;
  }

  /** Colors, names, and marks of spans; only when something changed. */
  #decorate(jobs) {
    const state = `${this.#timeline.version} ${jobs.all.length}`;
    if (state === this.#decorated) return;
    this.#decorated = state;
    for (const [device, spans] of this.#timeline.rows()) {
      for (const span of spans) {
        const { bar, from } = span;
        span.key = `${bar.job} ${bar.attempt} ${span.from_s} ${device}`;
        span.color = jobs.hue(bar.job);
        span.text = plain(bar.name);
        span.mark = from === null ? null : from < bar.workers ? "grew" : from > bar.workers ? "shrank" : "restarted";
      }
    }
  }

  #tip({ bar, from, num, to_s, mark }) {
    const [now_s, nodes] = this.#last;
    const kind = nodes.kindOf(bar.devices[0]);
    const end = bar.end_s === null ? "now" : moment(bar.end_s, now_s);
    const lasted = duration((bar.end_s ?? now_s) - bar.start_s);
    const workers = `${bar.workers} worker${bar.workers === 1 ? "" : "s"}${kind ? ` on ${kind}` : ""}`;
    const lines = [plain(bar.name), `${workers}, attempt ${bar.attempt}`];
    lines.push(`${moment(bar.start_s, now_s)} to ${end}, ${lasted}`);
    if (mark) lines.push(mark === "restarted" ? "restarted at the same size" : `resized from ${from} to ${bar.workers}`);
    if (num > 1) lines.push(`shares this device${to_s === Infinity ? "" : ` until ${moment(to_s, now_s)}`}`);
    return lines;
  }

  async #showAll() {
    const [now_s] = this.#last ?? [0];
    await this.#timeline.extend(0).catch(() => null);
    const first_s = this.#timeline.first_s ?? now_s - RANGES[0][0];
    this.#gantt.follow((now_s - first_s) * 1.05 + 10);
    this.#again();
  }

  #moved() {
    markChoice(this.#ranges, this.#view.isLive ? this.#view.length_s : null);
    this.#now.hidden = this.#view.isLive;
    const from_s = this.#view.from_s;
    if (!this.#last || from_s >= (this.#timeline.begins_s ?? -Infinity)) return;
    // Half a screen more than is visible, so that further panning does not have to wait.
    void this.#timeline
      .extend(from_s - this.#view.length_s / 2)
      .then((isMore) => isMore && this.#again())
      .catch(() => null);
  }

  #again() {
    if (this.#last) this.show(...this.#last);
  }

  /** The same for users who cannot see the canvas: which job has which device now. */
  #speak(nodes, jobs) {
    const devices = nodes.all.flatMap((node) => node.devices).slice(0, MAX_SPOKEN);
    setItems(this.#spoken, devices, ({ name }) => name, () => element("li"), (child, { name, jobs: ids }) => {
      const kind = nodes.kindOf(name);
      setText(child, `${plain(name)}${kind ? ` (${kind})` : ""}: ${ids.map((id) => jobs.name(id)).join(" and ") || "idle"}`);
    });
  }
}

/** A node's heading: collapses it, and takes it out of service. */
class NodeTitle {
  #name = element("span");
  #note = element("span", { class: "node-note" });
  #toggle = element("button", { type: "button", class: "node-toggle" }, this.#name);
  #drain = element("button", { type: "button", class: "quiet small" });
  #said = element("span", { class: "node-note bad", role: "status" });
  #node;

  constructor(node, mayChange, onToggle) {
    this.#node = node;
    this.mayChange = mayChange;
    this.root = element("div", { class: "node-title" }, this.#toggle, this.#note, this.#drain, this.#said);
    this.#toggle.addEventListener("click", onToggle);
    this.#drain.addEventListener("click", () => void this.#send());
  }

  show(node, kind, isOpen) {
    this.#node = node;
    setText(this.#name, plain(node.name));
    setAttribute(this.#toggle, "aria-expanded", String(isOpen));
    const busy = node.devices.filter((device) => device.jobs.length).length;
    const state = node.status === "up" ? "" : node.status;
    setText(this.#note, [kind, `${busy} of ${node.devices.length} busy`, state].filter(Boolean).join(", "));
    this.#drain.hidden = !this.mayChange() || !node.up;
    setText(this.#drain, this.#isDrained() ? "Resume" : "Drain");
    setAttribute(this.#drain, "title", this.#isDrained() ? "Return this node to service" : "Move jobs off this node");
  }

  #isDrained() {
    return this.#node.status === "drained";
  }

  async #send() {
    this.#drain.disabled = true;
    setText(this.#said, "");
    try {
      await ask(`/v1/nodes/${this.#isDrained() ? "resume" : "drain"}`, "POST", { name: this.#node.name });
    } catch (error) {
      setText(this.#said, error.message);
    }
    this.#drain.disabled = false;
  }
}
