// Labeled inputs of forms.

import { element } from "./elements.js";

let num_made = 0;

/** A label above an input: { root, input }. */
export function field(label, attributes, note = "") {
  return labeled(label, element("input", { autocomplete: "off", spellcheck: "false", ...attributes }), note);
}

/** A label above a list to choose from.  `options`: [[value, text]]. */
export function chooser(label, options) {
  return labeled(label, element("select", {}, ...options.map(([value, text]) => element("option", { value }, text))), "");
}

function labeled(label, input, note) {
  const id = `field-${++num_made}`;
  input.id = id;
  const root = element("div", { class: "field" }, element("label", { for: id }, label), input);
  if (note) {
    input.setAttribute("aria-describedby", `${id}-note`);
    root.append(element("p", { id: `${id}-note`, class: "note" }, note));
  }
  return { root, input };
}

/** The number in an input; null if it is empty. */
export function numberOf(input) {
  return input.value.trim() === "" ? null : Number(input.value);
}

/** Job choices: "name (id)", in the given order. */
export function jobOptions(jobs) {
  return jobs.map((job) => [job.id, `${job.name} (${job.id})`]);
}
