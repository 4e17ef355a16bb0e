// One job: its state, its curves, its reasons, its output, and controls to change or cancel it.

import { ask, RefusedError } from "./api.js";
import { CancelControl } from "./cancel.js";
import { compareAddress } from "./compare.js";
import { Curves } from "./curves.js";
import { element, setItems, setText } from "./elements.js";
import { duration, loss, moment, percent, stepTime } from "./figures.js";
import { isOver, setStateBadge, stateBadge, timesOf, workersText } from "./jobs.js";
import { LogTail } from "./logs.js";
import { progressParts, showProgress } from "./queue.js";
import { SettingsControl } from "./settings.js";
import { Phases, Speeds } from "./speeds.js";
import { plain } from "./text.js";

export class Detail {
  #root = document.getElementById("detail");
  #shown = null;

  /** `mayChange()`: whether this browser's user may change jobs. */
  constructor(mayChange) {
    this.mayChange = mayChange;
  }

  /** Called after every update, and when another job is selected. */
  show(now_s, jobs, nodes, id) {
    const job = id === null ? null : jobs.get(id);
    if (!job) {
      this.#shown = null;
      this.#root.replaceChildren(...(id === null ? [] : missing(id)));
    } else {
      if (this.#shown?.id !== id) {
        this.#shown = new JobView(job, this.mayChange);
        this.#root.replaceChildren(this.#shown.root);
        // With enough room its column scrolls, otherwise the detail itself does.
        this.#root.scrollTop = this.#root.parentElement.scrollTop = 0;
      }
      this.#shown.show(now_s, job, jobs, nodes);
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
  #curves = new Curves();
  #speeds = new Speeds();
  #phases = new Phases();
  #color = "";
  #sentences = element("ol", { class: "sentences", tabindex: "0", "aria-label": "Why" });
  #refreshed = null;

  constructor(job, mayChange) {
    this.id = job.id;
    this.job = job;
    this.cancel = new CancelControl(job.id);
    this.settings = new SettingsControl(job, mayChange);
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
      element("div", { class: "actions" }, this.settings.button, compareLink(job.id), this.cancel.button),
      this.settings.root,
      this.cancel.root,
      this.#curves.root,
      this.#speeds.root,
      this.#phases.root,
      why,
      this.log.root,
      command,
    );
  }

  show(now_s, job, jobs, nodes) {
    this.job = job;
    this.now_s = now_s;
    setText(this.#name, job.name);
    setStateBadge(this.#badge, job.state);
    showProgress(this.#progress, job, now_s);
    const facts = factsOf(job, jobs, nodes, now_s);
    setItems(this.#facts, facts, ([name]) => name, fact, (child, [, value]) => setText(child.lastChild, value));
    this.cancel.show(job);
    this.settings.show(job);
    this.log.show(job);
    this.#color = jobs.color(job.id);
  }

  async refresh() {
    // Nothing more happens to a finished job: one refresh after its end is enough.
    const state = `${this.job.state} ${this.job.attempt}`;
    if (isOver(this.job) && this.#refreshed === state) return;
    const [{ sentences }, history] = await Promise.all([
      ask(`/v1/jobs/${this.id}/explain`),
      ask(`/v1/jobs/${this.id}/history`),
      this.log.refresh(),
    ]);
    this.#refreshed = state;
    this.#curves.show([{ history, color: this.#color, name: this.job.name }]);
    this.#speeds.show(history.speeds);
    this.#phases.show(history.phases);
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

function factsOf(job, jobs, nodes, now_s) {
  const exposed = job.step_s ? percent(job.exposed_s / job.step_s) : "";
  const { waited_s, ran_s } = timesOf(job, now_s);
  return [
    ["Workers", isOver(job) ? "" : workersText(job)],
    ["Devices", nodes.devicesText(job.devices)],
    ["Shares with", job.partner ? jobs.name(job.partner) : ""],
    ["Step time", stepTime(job.step_s)],
    ["Exposed communication", exposed && exposed !== "0 %" ? `${exposed} of a step` : ""],
    ["Loss", loss(job.loss)],
    ["Attempt", job.attempt ? String(job.attempt) : ""],
    ["Restarts", job.restarts ? String(job.restarts) : ""],
    ["Submitted", moment(job.submitted_s, now_s)],
    ["Started", job.started_s === null ? "" : moment(job.started_s, now_s)],
    ["Finished", job.finished_s === null ? "" : moment(job.finished_s, now_s)],
    ["Waited", duration(waited_s)],
    ["Ran", job.attempt ? duration(ran_s) : ""],
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

function compareLink(id) {
  return element("a", { href: compareAddress([id]), class: "button" }, "Compare");
}

function closeLink() {
  return element("a", { href: "#", class: "close", "aria-label": "Close" }, "×");
}
