// One strip per device: jobs as colored blocks over time; two jobs that share a device are stacked.

import { choices, element, setAttribute, setItems, setText } from "./elements.js";
import { moment } from "./figures.js";
import { jobLink, setJobLink } from "./jobs.js";
import { plain } from "./text.js";

// Time range in seconds, its name, and its axis labels.
const WINDOWS = [
  [600, "10 min", ["10 min", "8", "6", "4", "2", "now"]],
  [3600, "1 h", ["60 min", "45", "30", "15", "now"]],
  [21600, "6 h", ["6 h", "5", "4", "3", "2", "1", "now"]],
];
// With more devices than this, strips are thinner.
const MANY = 16;

export class Devices {
  #root = document.getElementById("devices");
  #window = WINDOWS[0];
  #last = null;

  constructor() {
    const options = WINDOWS.map(([seconds, label]) => [seconds, label]);
    choices(document.getElementById("windows"), options, this.#window[0], (seconds) => {
      this.#window = WINDOWS.find((one) => one[0] === seconds);
      if (this.#last) this.show(...this.#last);
    });
  }

  show(now_s, nodes, jobs, history) {
    this.#last = [now_s, nodes, jobs, history];
    const num = nodes.reduce((sum, node) => sum + node.devices.length, 0);
    setAttribute(this.#root, "class", `strips parts${this.#window[2].length - 1}${num > MANY ? " many" : ""}`);
    const rows = nodes.flatMap((node) => [
      { key: `node${node.node}`, node, isTitle: true },
      ...node.devices.map((device) => ({ key: `device${device.device}`, node, device })),
    ]);
    setItems(
      this.#root,
      [...rows, { key: "axis", isAxis: true }],
      (row) => row.key,
      (row) => (row.isAxis ? axis() : row.isTitle ? title() : strip()),
      (child, row) => {
        if (row.isAxis) this.#showAxis(child);
        else if (row.isTitle) setText(child, row.node.up ? plain(row.node.name) : `${plain(row.node.name)}: down`);
        else this.#showStrip(child, row, now_s, jobs, history);
      },
    );
  }

  #showAxis(axis) {
    setItems(axis, this.#window[2], (label) => label, () => element("span"), setText);
  }

  #showStrip(row, { node, device }, now_s, jobs, history) {
    const [label, track, holders] = row.children;
    setText(label, String(device.device));
    setAttribute(row, "class", node.up ? "strip" : "strip down");
    const length_s = this.#window[0];
    const begin_s = now_s - length_s;
    const place = (time_s) => Math.min(Math.max((time_s - begin_s) / length_s, 0), 1) * 100;
    const blocks = history
      .spans(device.device)
      .filter((span) => span.to_s === null || span.to_s > begin_s)
      .flatMap((span) => span.jobs.map((id, lane) => ({ ...span, id, lane, num: span.jobs.length })));
    const unknown = { id: null, from_s: begin_s, to_s: history.begins_s, lane: 0, num: 1 };
    setItems(
      track,
      history.begins_s > begin_s ? [unknown, ...blocks] : blocks,
      (block) => (block.id === null ? "unknown" : `${block.id} ${block.from_s}`),
      (block) => (block.id === null ? element("div", { class: "unknown" }) : element("a", {}, element("bdi"))),
      (child, block) => {
        const left = place(block.from_s);
        // Through the style object: the content security policy forbids style attributes, and nothing is parsed.
        child.style.left = `${left}%`;
        child.style.width = `${place(block.to_s ?? now_s) - left}%`;
        if (block.id !== null) showBlock(child, block, now_s, jobs);
      },
    );
    showHolders(holders, device, jobs, node.up);
  }
}

function axis() {
  return element("div", { class: "axis", "aria-hidden": "true" });
}

function title() {
  return element("h3", { class: "node" });
}

function strip() {
  return element(
    "div",
    {},
    element("span", { class: "device" }),
    // Visual only; the text next to it says which job has the device now.
    element("div", { class: "track", "aria-hidden": "true" }),
    element("div", { class: "holders" }),
  );
}

function showBlock(block, { id, from_s, to_s, lane, num }, now_s, jobs) {
  const lanes = num > 1 ? (lane === 0 ? "upper" : "lower") : "";
  setAttribute(block, "class", `block ${jobs.color(id)} ${lanes}`);
  setAttribute(block, "href", `#job/${id}`);
  // The jobs are linked elsewhere too, so the keyboard can skip the blocks.
  setAttribute(block, "tabindex", "-1");
  setAttribute(block, "title", `${jobs.name(id)}, ${moment(from_s, now_s)} to ${to_s ? moment(to_s, now_s) : "now"}`);
  setText(block.firstChild, jobs.name(id));
}

function showHolders(holders, { jobs: ids }, jobs, isUp) {
  setItems(
    holders,
    ids.length ? [...ids].sort() : [""], // as in the strip
    (id) => id,
    (id) => (id ? jobLink() : element("span", { class: "idle" })),
    (child, id) => (id ? setJobLink(child, id, jobs) : setText(child, isUp ? "idle" : "")),
  );
}
