// The queue: one row per job.

import { choices, element, setAttribute, setItems, setText } from "./elements.js";
import { count, duration, loss, roughly, stepTime } from "./figures.js";
import { addressOf, inOrder, isOver, jobLink, setJobLink, setStateBadge, stateBadge, timesOf, workersText } from "./jobs.js";
import { plain } from "./text.js";

const FILTERS = [
  ["all", "All", () => true],
  ["running", "Running", (job) => job.state === "RUNNING" || job.state === "STOPPING"],
  ["waiting", "Waiting", (job) => job.state === "PENDING"],
  ["over", "Finished", isOver],
];
// Each heading, and what a click on it sorts by; jobs without a value come last.
const COLUMNS = [
  ["Job", (job) => job.name.toLowerCase()],
  ["State", (job) => job.state],
  ["Workers", (job) => (isOver(job) ? null : job.workers)],
  ["Progress", (job) => (job.total_steps ? job.step / job.total_steps : null)],
  ["Step time", (job) => job.step_s || null],
  ["Loss", (job) => job.loss],
  ["Restarts", (job) => job.restarts],
  ["Reason", null],
];
const HEADINGS = COLUMNS.map(([heading]) => heading);
const SHOWN_AT_ONCE = 100;
const MAX_PIPS = 8;

export class Queue {
  #root = document.getElementById("queue");
  #search = document.getElementById("search");
  #filter = FILTERS[0];
  #num_shown = SHOWN_AT_ONCE;
  #sort = { column: null, isDown: false };
  #headings = COLUMNS.map((column) => this.#heading(column));
  #last = null;
  #body = element("tbody");
  #note = element("p", { class: "empty" });
  #more = element("button", { type: "button", class: "quiet more" });

  constructor() {
    this.buttons = choices(document.getElementById("filters"), FILTERS, "all", (key) => {
      this.#filter = FILTERS.find((one) => one[0] === key);
      this.#num_shown = SHOWN_AT_ONCE;
      this.#again();
    });
    this.#search.addEventListener("input", () => this.#again());
    this.#more.addEventListener("click", () => {
      this.#num_shown += 2 * SHOWN_AT_ONCE;
      this.#again();
    });
    const head = element("thead", {}, element("tr", {}, ...this.#headings));
    this.#root.append(element("table", {}, head, this.#body), this.#note, this.#more);
  }

  show(now_s, jobs, selected) {
    this.#last = [now_s, jobs, selected];
    for (const [key, label, fits] of FILTERS) {
      setText(this.buttons.get(key), `${label} ${count(jobs.all.filter(fits).length)}`);
    }
    const wanted = this.#search.value.trim().toLowerCase();
    const fits = (job) => !wanted || job.id.includes(wanted) || job.name.toLowerCase().includes(wanted);
    const found = this.#sorted(inOrder(jobs.all.filter(this.#filter[2]).filter(fits)));
    setItems(this.#body, found.slice(0, this.#num_shown), (job) => job.id, row, (child, job) => {
      setAttribute(child, "class", `${isOver(job) ? "over" : ""} ${job.id === selected ? "selected" : ""}`);
      showRow(child, job, jobs, now_s);
    });
    this.#root.firstChild.hidden = found.length === 0;
    const why = jobs.all.length ? "No matching jobs." : "No jobs yet. Submit one: weft submit -- python train.py";
    setText(this.#note, found.length ? "" : why);
    const num_more = found.length - this.#num_shown;
    this.#more.hidden = num_more <= 0;
    setText(this.#more, `Show more (${count(Math.max(num_more, 0))} left)`);
  }

  #heading([text, valueOf]) {
    const heading = element("th", { scope: "col", class: classOf(text) });
    if (!valueOf) heading.append(text);
    else {
      const button = element("button", { type: "button", class: "sort" }, text);
      button.addEventListener("click", () => this.#sortBy(text));
      heading.append(button);
    }
    return heading;
  }

  /** First ascending, then descending, then the default order again. */
  #sortBy(column) {
    const isSame = this.#sort.column === column;
    if (isSame && this.#sort.isDown) this.#sort = { column: null, isDown: false };
    else this.#sort = { column, isDown: isSame };
    this.#headings.forEach((heading, index) => {
      const isIt = COLUMNS[index][0] === this.#sort.column;
      setAttribute(heading, "aria-sort", isIt ? (this.#sort.isDown ? "descending" : "ascending") : null);
    });
    this.#again();
  }

  #sorted(found) {
    const { column, isDown } = this.#sort;
    if (!column) return found;
    const valueOf = COLUMNS.find(([heading]) => heading === column)[1];
    const [low, high] = isDown ? [1, -1] : [-1, 1];
    return found.sort((a, b) => {
      const [x, y] = [valueOf(a), valueOf(b)];
      if (x === y) return 0;
      if (x === null || y === null) return x === null ? 1 : -1;
      return x < y ? low : high;
    });
  }

  #again() {
    if (this.#last) this.show(...this.#last);
  }
}

function classOf(heading) {
  return `cell-${heading.toLowerCase().replace(" ", "-")}`;
}

function row(job) {
  const name = element("td", { class: "cell-job" }, jobLink(), element("code", { class: "id" }, job.id));
  const state = element("td", { class: "cell-state" }, stateBadge());
  const pips = element("span", { class: "pips", "aria-hidden": "true" });
  const workers = element("td", { class: "cell-workers", "data-label": "Workers" }, element("span"), pips);
  const progress = element("td", { class: "cell-progress" }, ...progressParts());
  const figures = HEADINGS.slice(4, 7).map((text) => element("td", { class: classOf(text), "data-label": text }));
  const reason = element("td", { class: "cell-reason" }, element("span", {}, element("b"), element("span")));
  const made = element("tr", {}, name, state, workers, progress, ...figures, reason);
  made.addEventListener("click", (event) => {
    // Selecting text to copy it, or following the link itself, must not navigate.
    if (!event.target.closest("a") && getSelection().isCollapsed) location.hash = addressOf(job.id);
  });
  return made;
}

function showRow(made, job, jobs, now_s) {
  const [name, state, workers, progress, step, lossCell, restarts, reason] = made.children;
  setJobLink(name.firstChild, job.id, jobs);
  setStateBadge(state.firstChild, job.state);
  setText(workers.firstChild, isOver(job) ? "" : workersText(job));
  showPips(workers.lastChild, job);
  showProgress(progress, job, now_s);
  setText(step, stepTime(job.step_s));
  setText(lossCell, loss(job.loss));
  setText(restarts, job.restarts ? String(job.restarts) : "");
  const why = placeText(job, now_s) + plain(job.reason);
  const [code, sentence] = reason.firstChild.children;
  // That a completed job has completed is its state, too.
  const isState = [job.reason_code, why].every((text) => text.toUpperCase() === job.state);
  setText(code, isState ? "" : job.reason_code);
  setText(sentence, isState ? "" : why);
  setAttribute(reason, "title", why);
}

/** Where a waiting job stands in the queue, before its reason. */
function placeText(job, now_s) {
  if (job.queue_position === null) return "";
  const start_s = job.expected_start_s;
  const when = start_s === null ? "" : `, starts in about ${duration(Math.max(start_s - now_s, 0))}`;
  return `Number ${job.queue_position} in the queue${when}: `;
}

/** One square per worker it may have, filled for those it has. */
function showPips(pips, job) {
  const num = isOver(job) || job.max_workers > MAX_PIPS || job.max_workers < 2 ? 0 : job.max_workers;
  const kinds = Array.from({ length: num }, (_, index) => (index < job.workers ? "has" : "may"));
  setItems(pips, kinds.map((kind, index) => ({ kind, index })), (pip) => pip.index, () => element("i"), (child, pip) =>
    setAttribute(child, "class", pip.kind),
  );
}

export function progressParts() {
  return [element("progress", { max: "1" }), element("span"), element("span")];
}

/** Its progress, and the time it has taken or will take. */
export function showProgress(cell, job, now_s) {
  const [bar, steps, time] = cell.children;
  bar.hidden = !job.total_steps || (isOver(job) && job.step === 0);
  if (job.total_steps) {
    bar.value = Math.min(job.step / job.total_steps, 1);
    setAttribute(bar, "aria-label", `step ${job.step} of ${job.total_steps}`);
  }
  setText(steps, stepsOf(job));
  setText(time, timeOf(job, now_s));
}

function stepsOf(job) {
  if (job.total_steps) return `${count(job.step)} / ${count(job.total_steps)}`;
  return job.step ? `step ${count(job.step)}` : "";
}

function timeOf(job, now_s) {
  const { waited_s, ran_s } = timesOf(job, now_s);
  if (isOver(job)) return job.started_s === null ? "never ran" : `ran ${duration(ran_s)}, waited ${duration(waited_s)}`;
  if (job.state === "PENDING") return `waited ${duration(waited_s)}`;
  const left_s = job.total_steps && job.step_s ? (job.total_steps - job.step) * job.step_s : null;
  if (left_s !== null) return `≈ ${roughly(left_s)} left`;
  return job.started_s === null ? "" : `running for ${duration(ran_s)}`;
}
