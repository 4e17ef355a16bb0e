// Two jobs next to each other: their figures, and their curves over each other.

import { ask, RefusedError } from "./api.js";
import { Curves } from "./curves.js";
import { element, setItems, setText } from "./elements.js";
import { chooser, jobOptions } from "./fields.js";
import { count, duration, loss, percent, stepTime } from "./figures.js";
import { inOrder, isOver, jobLink, setJobLink, timesOf, workersText } from "./jobs.js";

// The lists offer recent jobs; older ones can be compared through their URL.
const MAX_LISTED = 500;
const SAME_COLOR = "color-other";

export function compareAddress(ids) {
  return `#compare/${ids.join("/")}`;
}

export class Compare {
  #curves = new Curves("Curves");
  #choosers = ["First job", "Second job"].map((label) => chooser(label, []));
  #table = element("table", { class: "versus" });
  #note = element("p", { class: "empty" });
  #ids = [];
  #histories = new Map();
  #jobs = null;

  constructor() {
    const fields = element("div", { class: "fields wide" }, ...this.#choosers.map(({ root }) => root));
    this.root = element("div", {}, fields, this.#note, this.#table, this.#curves.root);
    for (const { input } of this.#choosers) {
      input.addEventListener("change", () => {
        location.hash = compareAddress(this.#choosers.map((one) => one.input.value).filter(Boolean));
      });
    }
    document.getElementById("compare").append(this.root);
  }

  show(now_s, jobs, ids) {
    this.#jobs = jobs;
    this.#ids = ids.filter((id) => jobs.get(id));
    const listed = inOrder(jobs.all).slice(0, MAX_LISTED);
    const chosen = this.#ids.map((id) => jobs.get(id)).filter((job) => !listed.includes(job));
    const options = [["", "Choose a job"], ...jobOptions([...chosen, ...listed])];
    this.#choosers.forEach(({ input }, index) => {
      setItems(input, options, ([id]) => id, ([id]) => element("option", { value: id }), (child, [, text]) => setText(child, text));
      if (document.activeElement !== input) input.value = this.#ids[index] ?? "";
    });
    setText(this.#note, this.#ids.length === 2 ? "" : jobs.all.length < 2 ? "Comparing needs at least two jobs." : "Choose two jobs to compare.");
    this.#showTable(now_s, jobs);
    this.#showCurves();
  }

  #showTable(now_s, jobs) {
    const chosen = this.#ids.map((id) => jobs.get(id));
    this.#table.hidden = chosen.length === 0;
    if (!this.#table.firstChild) this.#table.append(element("thead", {}, element("tr")), element("tbody"));
    const [head, body] = this.#table.children;
    const headings = [null, ...chosen];
    setItems(
      head.firstChild,
      headings.map((job, index) => ({ job, index })),
      ({ job, index }) => (job ? `${index} ${job.id}` : "corner"),
      ({ job }) => (job ? element("th", { scope: "col" }, jobLink()) : element("td")),
      (child, { job }) => job && setJobLink(child.firstChild, job.id, jobs),
    );
    setItems(
      body,
      rowsOf(chosen, now_s),
      ({ name }) => name,
      ({ name }) => element("tr", {}, element("th", { scope: "row" }, name)),
      (child, { values }) => {
        while (child.children.length > values.length + 1) child.lastChild.remove();
        values.forEach((value, index) => {
          if (!child.children[index + 1]) child.append(element("td"));
          setText(child.children[index + 1], value);
        });
      },
    );
  }

  #showCurves() {
    const known = this.#ids.filter((id) => this.#histories.has(id));
    this.#curves.root.hidden = known.length === 0;
    const colors = known.map((id) => this.#jobs.color(id));
    if (colors[1] === colors[0]) colors[1] = SAME_COLOR;
    this.#curves.show(
      known.map((id, index) => ({ history: this.#histories.get(id), color: colors[index], name: this.#jobs.name(id) })),
    );
  }

  async refresh() {
    if (!this.#jobs) return;
    for (const id of this.#ids) {
      // A finished job has no new measurements.
      if (this.#histories.get(id)?.isWhole) continue;
      try {
        const history = await ask(`/v1/jobs/${id}/history`);
        this.#histories.set(id, { ...history, isWhole: isOver(this.#jobs.get(id)) });
      } catch (error) {
        if (!(error instanceof RefusedError) || error.status === 401) throw error;
      }
    }
    this.#showCurves();
  }
}

function rowsOf(jobs, now_s) {
  const row = (name, textOf) => ({ name, values: jobs.map(textOf) });
  return [
    row("State", (job) => job.state.charAt(0) + job.state.slice(1).toLowerCase()),
    row("Workers", (job) => workersText(job)),
    row("Steps", (job) => (job.total_steps ? `${count(job.step)} / ${count(job.total_steps)}` : count(job.step))),
    row("Loss", (job) => loss(job.loss)),
    row("Step time", (job) => stepTime(job.step_s)),
    row("Exposed communication", (job) => (job.step_s ? percent(job.exposed_s / job.step_s) : "")),
    row("Restarts", (job) => String(job.restarts)),
    row("Waited", (job) => duration(timesOf(job, now_s).waited_s)),
    row("Ran", (job) => duration(timesOf(job, now_s).ran_s)),
    row("Weight", (job) => String(job.weight)),
  ];
}
