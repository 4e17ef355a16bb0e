// How fast a job is: predicted and measured step time at each size, and where the time of a step goes.

import { element, setItems, setText } from "./elements.js";
import { percent, stepTime } from "./figures.js";

const PHASES = [
  ["forward_s", "Forward"],
  ["backward_s", "Backward"],
  ["exposed_s", "Exposed communication"],
  ["update_s", "Update"],
  ["turn_wait_s", "Waiting for a turn"],
];

/** One row per size that was measured or predicted. */
export class Speeds {
  #rows = element("ol", { class: "speeds" });
  #key = element(
    "ul",
    { class: "legend" },
    element("li", {}, element("span", { class: "bar-key measured", "aria-hidden": "true" }), "measured"),
    element("li", {}, element("span", { class: "bar-key predicted", "aria-hidden": "true" }), "predicted"),
  );
  root = element("section", {}, element("h3", {}, "Step time by number of workers"), this.#rows, this.#key);

  show(speeds) {
    const known = speeds.filter((one) => one.measured_step_s !== null || one.predicted_step_s !== null);
    this.root.hidden = known.length === 0;
    const longest_s = Math.max(...known.flatMap((one) => [one.measured_step_s ?? 0, one.predicted_step_s ?? 0]));
    setItems(this.#rows, known, ({ workers }) => workers, speedRow, (child, one) => showSpeed(child, one, longest_s));
  }
}

function speedRow({ workers }) {
  const bar = (kind) => element("div", { class: `bar ${kind}` });
  const bars = element("div", { class: "bars", "aria-hidden": "true" }, bar("measured"), bar("predicted"));
  return element("li", {}, element("span", { class: "size" }, String(workers)), bars, element("span", { class: "figures" }));
}

function showSpeed(row, { measured_step_s: measured_s, predicted_step_s: predicted_s }, longest_s) {
  const [, bars, figures] = row.children;
  [measured_s, predicted_s].forEach((value, index) => {
    bars.children[index].style.width = `${(100 * (value ?? 0)) / longest_s}%`;
    bars.children[index].hidden = value === null;
  });
  const error = measured_s && predicted_s ? ` (${errorText(predicted_s / measured_s - 1)})` : "";
  const predicted = predicted_s === null ? "" : `predicted ${stepTime(predicted_s)}${error}`;
  setText(figures, [measured_s === null ? "" : stepTime(measured_s), predicted].filter(Boolean).join(", "));
}

function errorText(error) {
  const rounded = Math.round(error * 100);
  return rounded === 0 ? "equal" : `${rounded > 0 ? "+" : "−"}${Math.abs(rounded)} %`;
}

/** A step as one bar. */
export class Phases {
  #bar = element("div", { class: "phases", "aria-hidden": "true" });
  #legend = element("ul", { class: "legend" });
  root = element("section", {}, element("h3", {}, "Where the time of a step goes"), this.#bar, this.#legend);

  show(phases) {
    const parts = phases === null ? [] : PHASES.map(([key, name], index) => ({ key, name, index, value_s: phases[key] ?? 0 }));
    const total_s = parts.reduce((sum, part) => sum + part.value_s, 0);
    this.root.hidden = total_s === 0;
    if (this.root.hidden) return;
    const shown = parts.filter(({ value_s }) => value_s > 0);
    setItems(this.#bar, shown, ({ key }) => key, ({ index }) => element("div", { class: `phase phase${index}` }), (child, part) => {
      child.style.width = `${(100 * part.value_s) / total_s}%`;
    });
    setItems(
      this.#legend,
      shown,
      ({ key }) => key,
      ({ index }) => element("li", {}, element("span", { class: `bar-key phase${index}`, "aria-hidden": "true" }), element("span")),
      (child, { name, value_s }) => setText(child.lastChild, `${name} ${stepTime(value_s)}, ${percent(value_s / total_s)}`),
    );
  }
}
