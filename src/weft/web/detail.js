// One job: its state, why, its output, and how to cancel it.

import { ask, RefusedError } from "./api.js";
import { drawing, element, setAttribute, setItems, setText } from "./elements.js";
import { count, duration, loss, moment, percent, stepTime } from "./figures.js";
import { isOver, setStateBadge, stateBadge, workersText } from "./jobs.js";
import { LogTail } from "./logs.js";
import { progressParts, showProgress } from "./queue.js";
import { plain } from "./text.js";

export class Detail {
  #root = document.getElementById("detail");
  #shown = null;
  #trails = new Trails();

  /** Called after every refresh, and when another job is selected. */
  show(now_s, jobs, id) {
    this.#trails.note(jobs.all);
    const job = id === null ? null : jobs.get(id);
    if (!job) {
      this.#shown = null;
      this.#root.replaceChildren(...(id === null ? [] : missing(id)));
    } else {
      if (this.#shown?.id !== id) {
        this.#shown = new JobView(job);
        this.#root.replaceChildren(this.#shown.root);
        // With enough room its column scrolls, otherwise the detail itself does.
        this.#root.scrollTop = this.#root.parentElement.scrollTop = 0;
      }
      this.#shown.show(now_s, job, jobs, this.#trails.of(id));
    }
    this.#root.hidden = id === null;
  }

  /** Explanations and output are fetched only here, and only for the job that is shown. */
  async refresh() {
    try {
      await this.#shown?.refresh();
    } catch (error) {
      // An error about one job must not stop the dashboard from showing the others.
      if (!(error instanceof RefusedError) || error.status === 401) throw error;
    }
  }

  focus() {
    document.getElementById("detail-title")?.focus();
  }
}

class JobView {
  #name = element("bdi");
  #badge = stateBadge();
  #progress = element("div", { class: "cell-progress" }, ...progressParts());
  #facts = element("dl", { class: "facts" });
  #chart = new LossChart();
  #sentences = element("ol", { class: "sentences" });
  #refreshed = null;

  constructor(job) {
    this.id = job.id;
    this.job = job;
    this.cancel = new CancelControl(job.id);
    this.log = new LogTail(job);
    const heading = element("h2", { id: "detail-title", tabindex: "-1" }, this.#name);
    const why = element("section", {}, element("h3", {}, "Why"), this.#sentences);
    const words = element("pre", { class: "command" }, commandText(job));
    const command = element("section", {}, element("h3", {}, "Command"), words);
    this.root = element(
      "article",
      {},
      element("div", { class: "detail-head" }, heading, closeLink()),
      element("p", { class: "detail-state" }, this.#badge, element("code", { class: "id" }, job.id)),
      this.#progress,
      this.#facts,
      this.cancel.root,
      this.#chart.root,
      why,
      this.log.root,
      command,
    );
  }

  show(now_s, job, jobs, trail) {
    this.job = job;
    this.now_s = now_s;
    setText(this.#name, job.name);
    setStateBadge(this.#badge, job.state);
    showProgress(this.#progress, job, now_s);
    const facts = factsOf(job, jobs, now_s);
    setItems(this.#facts, facts, ([name]) => name, fact, (child, [, value]) => setText(child.lastChild, value));
    this.cancel.show(job);
    this.#chart.show(trail);
    this.log.show(job);
  }

  async refresh() {
    // Nothing more happens to a finished job: one refresh after its end is enough.
    const state = `${this.job.state} ${this.job.attempt}`;
    if (isOver(this.job) && this.#refreshed === state) return;
    const [{ sentences }] = await Promise.all([ask(`/v1/jobs/${this.id}/explain`), this.log.refresh()]);
    this.#refreshed = state;
    const newest = sentences.map((one, index) => ({ ...one, index })).reverse();
    setItems(this.#sentences, newest, (one) => one.index, sentence, (child, one) => {
      setText(child.firstChild, moment(one.time_s, this.now_s));
      setText(child.lastChild, plain(one.sentence));
    });
  }
}

function sentence() {
  return element("li", {}, element("time"), element("span"));
}

function fact([name]) {
  return element("div", {}, element("dt", {}, name), element("dd"));
}

function factsOf(job, jobs, now_s) {
  const waits = job.step_s ? percent(job.exposed_s / job.step_s) : "";
  const end_s = job.finished_s ?? now_s;
  return [
    ["Workers", isOver(job) ? "" : workersText(job)],
    ["Devices", job.devices.join(", ")],
    ["Shares with", job.partner ? jobs.name(job.partner) : ""],
    ["Step time", stepTime(job.step_s)],
    ["Waiting for network", waits && waits !== "0 %" ? `${waits} of a step` : ""],
    ["Loss", loss(job.loss)],
    ["Attempt", job.attempt ? String(job.attempt) : ""],
    ["Restarts", job.restarts ? String(job.restarts) : ""],
    ["Submitted", moment(job.submitted_s, now_s)],
    ["Started", job.started_s === null ? "" : moment(job.started_s, now_s)],
    ["Finished", job.finished_s === null ? "" : moment(job.finished_s, now_s)],
    [isOver(job) ? "Total time" : "Elapsed", duration(end_s - job.submitted_s)],
    ["Exit code", job.exit_code === null || !isOver(job) ? "" : String(job.exit_code)],
    ["User", plain(job.user)],
    ["Weight", job.weight === 1 ? "" : String(job.weight)],
    ["Priority", job.priority ? String(job.priority) : ""],
  ].filter(([, value]) => value !== "");
}

function commandText(job) {
  const quoted = (word) => `'${plain(word).replaceAll("'", "'\\''")}'`;
  const words = job.command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : quoted(word)));
  return `${plain(job.cwd)}\n$ ${words.join(" ")}`;
}

function missing(id) {
  const heading = element("h2", { id: "detail-title", tabindex: "-1" }, `No job ${id}`);
  return [element("div", { class: "detail-head" }, heading, closeLink())];
}

function closeLink() {
  return element("a", { href: "#", class: "close", "aria-label": "Close" }, "×");
}

/** Cancels a job after a second click: the first one only asks. */
class CancelControl {
  root = element("div", { class: "cancel" });
  #ask = element("button", { type: "button", class: "danger" });
  #question = element("p");
  #yes = element("button", { type: "button", class: "danger strong" });
  #no = element("button", { type: "button", class: "quiet" }, "Keep job");
  #confirm = element("div", { class: "confirm", role: "group" }, this.#question, this.#yes, this.#no);
  #said = element("p", { class: "said", role: "status" });
  #wasAsked = false;

  constructor(id) {
    this.#confirm.hidden = true;
    this.#ask.addEventListener("click", () => this.#open(true));
    this.#no.addEventListener("click", () => this.#open(false));
    this.#yes.addEventListener("click", () => void this.#send(id));
    this.root.append(this.#ask, this.#confirm, this.#said);
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#confirm.hidden) return;
      event.stopPropagation();
      this.#open(false);
    });
  }

  show(job) {
    if (isOver(job)) {
      // Keep the keyboard focus near the button that was pressed instead of at the top of the page.
      if (this.root.contains(document.activeElement)) document.getElementById("detail-title").focus();
      this.root.hidden = true;
      return;
    }
    // A job may be stopping for another reason, such as a resize.  Then this is the first cancel request.
    const kills = job.state === "STOPPING" && (this.#wasAsked || job.reason.startsWith("cancelled"));
    this.#ask.hidden = !this.#confirm.hidden;
    setText(this.#ask, kills ? "Kill workers" : "Cancel job");
    setText(this.#yes, kills ? "Kill workers" : "Cancel job");
    setText(
      this.#question,
      kills
        ? "Kill the workers now? Unsaved progress will be lost."
        : job.workers
          ? "Cancel this job? Its workers are asked to save a checkpoint and exit."
          : "Remove this job from the queue?",
    );
  }

  #open(isOpen) {
    this.#confirm.hidden = !isOpen;
    this.#ask.hidden = isOpen;
    (isOpen ? this.#no : this.#ask).focus();
  }

  async #send(id) {
    this.#yes.disabled = true;
    try {
      await ask(`/v1/jobs/${id}/cancel`, "POST");
      this.#wasAsked = true;
      setText(this.#said, "Stop requested.");
    } catch (error) {
      setText(this.#said, `Not cancelled: ${error.message || "the controller is not responding"}`);
    }
    this.#yes.disabled = false;
    this.#open(false);
  }
}

const MAX_POINTS = 400;

/** Loss by step of every job, since the dashboard was opened. */
class Trails {
  #byId = new Map();

  note(jobs) {
    for (const job of jobs) {
      if (job.loss === null) continue;
      const trail = this.#byId.get(job.id) ?? [];
      if (trail.at(-1)?.step === job.step) continue;
      trail.push({ step: job.step, loss: job.loss });
      // Thinned evenly, so a long run keeps its shape.
      this.#byId.set(job.id, trail.length > MAX_POINTS ? trail.filter((_, index) => index % 2 === 0) : trail);
    }
  }

  of(id) {
    return this.#byId.get(id) ?? [];
  }
}

class LossChart {
  #line = drawing("polyline", { class: "line" });
  #high = element("span");
  #low = element("span");
  #range = element("p", { class: "range" });

  constructor() {
    const stretched = { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" };
    const scale = element("div", { class: "scale" }, this.#high, this.#low);
    const plot = element("div", { class: "plot" }, scale, drawing("svg", stretched, this.#line));
    this.root = element("section", { class: "chart" }, element("h3", {}, "Loss"), plot, this.#range);
  }

  show(trail) {
    this.root.hidden = trail.length < 3;
    if (this.root.hidden) return;
    const losses = trail.map((point) => point.loss);
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const [first, last] = [trail[0].step, trail.at(-1).step];
    const x = (step) => (100 * (step - first)) / Math.max(last - first, 1);
    const y = (value) => 96 - (92 * (value - low)) / (high - low || 1);
    const points = trail.map((point) => `${x(point.step).toFixed(2)},${y(point.loss).toFixed(2)}`);
    setAttribute(this.#line, "points", points.join(" "));
    setText(this.#high, loss(high));
    setText(this.#low, loss(low));
    setText(this.#range, `steps ${count(first)} to ${count(last)}, since the dashboard was opened`);
  }
}
