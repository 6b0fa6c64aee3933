// All jobs, and starting one.

import { h, show, table } from "/dom.js";
import { post } from "/server.js";
import { counted, duration, number } from "/words.js";

const MAX_BYTES = 64 * 1024;

export function elapsed(job) {
  const isOver = ["finished", "failed", "stopped"].includes(job.state);
  if (job.seconds === null || job.seconds === undefined) return null;
  return job.seconds + (isOver ? 0 : (Date.now() - job.at) / 1000);
}

export function progress(job) {
  if (!job.most || !["starting", "training"].includes(job.state)) return null;
  const done = Math.min(1, (job.done || 0) / job.most);
  return h("progress", { max: "1", value: String(done), "aria-label": `${job.job}: ${Math.round(100 * done)} % of the most rounds` });
}

// The round, and what it is for if that is no step of the training, with how far it has come.
export function round(job) {
  if (!job.round) return "";
  const attempt = job.attempt > 1 ? `, attempt ${job.attempt}` : "";
  const step = job.step ? `, ${job.step}${job.round_done ? ` (${Math.round(100 * job.round_done)} %)` : ""}` : "";
  return `${job.round}${attempt}${step}`;
}

export function state(job) {
  return h("span", { class: `state state-${job.state}` }, job.state);
}

// What to say while this process, or the coordinator, does not tell.
export function lostNote(feed) {
  if (!feed.is_connected && feed.process !== null) return h("p", { class: "note is-bad" }, "This page has lost its process, shows what it knew last, and tries again.");
  if (feed.lost) return h("p", { class: "note" }, `The coordinator does not tell about the jobs. This page shows what the ${feed.process?.role} knows by itself.\n${feed.lost}`);
  return null;
}

const COLUMNS = [
  { title: "job", kind: "name" }, { title: "state" }, { title: "progress" }, { title: "round", kind: "number" },
  { title: "loss", kind: "number" }, { title: "time", kind: "number" }, { title: "at most left", kind: "number" }, { title: "detail", kind: "detail" },
];

export class JobsView {
  section = "jobs";
  title = "Jobs";
  job = null;

  constructor(feed) {
    this.feed = feed;
    this.note = h("div");
    this.list = h("div");
    this.starting = new Starting();
    this.element = h("div", {}, h("h1", {}, "Jobs"), this.note, this.list, this.starting.element);
  }

  update() {
    const { feed } = this;
    show(this.note, lostNote(feed));
    const jobs = [...feed.jobs.values()].reverse();
    show(this.list, jobs.length ? table(`${counted(jobs.length, "job")}, the newest first`, COLUMNS, jobs.map((job) => [
      h("a", { href: `#/jobs/${encodeURIComponent(job.job)}` }, job.job), state(job), progress(job), round(job),
      number(job.loss), duration(elapsed(job)), duration(job.seconds_left), job.detail,
    ])) : h("p", { class: "soft" }, feed.is_connected ? "There are no jobs yet." : "No news yet."));
    this.starting.element.hidden = !feed.process?.allow_changes;
  }
}

class Starting {
  constructor() {
    this.text = h("textarea", { id: "job-text", spellcheck: "false", "aria-describedby": "start-result" });
    this.result = h("p", { id: "start-result", role: "status" });
    this.button = h("button", { class: "primary", type: "button", onclick: () => this.start() }, "Start the job");
    const file = h("input", { type: "file", id: "job-file", accept: ".yaml,.yml", onchange: (event) => this.read(event.target.files[0]) });
    this.element = h("details", { hidden: true }, h("summary", {}, "Start a job"),
      h("p", {}, h("label", { for: "job-file" }, "A job file"), file),
      h("p", {}, h("label", { for: "job-text" }, "or its text, in YAML"), this.text),
      h("p", { class: "buttons" }, this.button), this.result);
  }

  async read(file) {
    if (!file) return;
    if (file.size > MAX_BYTES) this.say("this file is too long for a job", true);
    else this.text.value = await file.text();
  }

  say(text, isBad) {
    this.result.className = isBad ? "note is-bad" : "";
    show(this.result, text);
  }

  async start() {
    this.button.disabled = true;
    this.say("asking the coordinator…");
    try {
      const { job } = await post("/api/jobs", { text: this.text.value });
      this.say("");
      location.hash = `#/jobs/${encodeURIComponent(job)}`;
    } catch (error) {
      this.say(error.message, true);
    }
    this.button.disabled = false;
  }
}
