// One job: its state, its rounds as they come, what this process did in them, and stopping and resuming it.

import { Chart } from "/chart.js";
import { h, show, table } from "/dom.js";
import { elapsed, lostNote, progress, round, state } from "/jobs.js";
import { get, post } from "/server.js";
import { bytes, duration, number } from "/words.js";

const [NEWEST, NEWEST_NARROW] = [20, 5];
const narrow = matchMedia("(max-width: 40rem)");

function ask(question, consequence, action) {
  const dialog = document.getElementById("dialog");
  show(document.getElementById("question"), question);
  show(document.getElementById("consequence"), consequence);
  const [cancel, confirm] = ["cancel", "confirm"].map((id) => document.getElementById(id));
  show(confirm, action);
  return new Promise((resolve) => {
    cancel.onclick = () => dialog.close("no");
    confirm.onclick = () => dialog.close("yes");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no";
    dialog.showModal();
    cancel.focus();
  });
}

export class JobView {
  section = "jobs";

  constructor(feed, job) {
    this.feed = feed;
    this.job = this.title = job;
    this.note = h("div");
    this.facts = h("dl", { class: "facts" });
    this.detail = h("div");
    this.buttons = h("p", { class: "buttons" });
    this.result = h("p", { role: "status" });
    this.loss = new Chart("Loss", "loss per row");
    this.seconds = new Chart("Seconds per round", "seconds", { fromZero: true, unit: " s" });
    this.rounds = h("div");
    this.notes = h("div");
    this.settings = h("details", { ontoggle: () => this.load() }, h("summary", {}, "Settings of the job"));
    this.element = h("div", {}, h("p", {}, h("a", { href: "#/jobs" }, "All jobs")), h("h1", {}, job), this.note, this.facts, this.detail,
      this.buttons, this.result, h("div", { class: "charts" }, this.loss.element, this.seconds.element), this.rounds, this.notes, this.settings);
  }

  update() {
    const { feed } = this;
    const job = feed.jobs.get(this.job);
    const isKnown = job || feed.work.size;
    show(this.note, lostNote(feed), !isKnown && feed.is_connected && h("p", { class: "note" }, "This process knows no job of this name."));
    show(this.facts, job ? this.factsOf(job) : []);
    show(this.detail, job?.detail && h("p", { class: job.state === "failed" ? "note is-bad" : "note" }, job.detail));
    show(this.buttons, job ? this.buttonsOf(job) : []);
    const rounds = this.known();
    this.loss.set(rounds.map((each) => ({ x: each.round, y: each.loss })));
    this.seconds.set(rounds.map((each) => ({ x: each.round, y: each.seconds })));
    show(this.rounds, rounds.length ? this.tableOf(rounds) : []);
    show(this.notes, feed.notes.length ? [h("h2", {}, "Notes"), h("ul", { class: "plain" }, feed.notes.map((note) => h("li", {}, note)))] : []);
  }

  // What the coordinator tells about the rounds; without it, what this process knows.
  known() {
    const { rounds, work, revision } = this.feed;
    if (revision === this.revision) return this.merged;
    this.revision = revision;
    const merged = new Map([...work.values()].map((line) => [line.round, { ...line, seconds: line.seconds && line.seconds.all - (line.seconds.setup ?? 0), kinds: line.seconds }]));
    for (const [round, line] of rounds) merged.set(round, { ...merged.get(round), ...line });
    this.merged = [...merged.values()].sort((one, other) => one.round - other.round);
    return this.merged;
  }

  factsOf(job) {
    const facts = [
      ["state", state(job)], ["progress", progress(job)], ["epoch", job.epoch ? `${job.epoch} of ${job.n_epochs}` : ""],
      ["round", round(job)], ["loss", number(job.loss)],
      ["time", duration(elapsed(job))], ["at most left", duration(job.seconds_left)],
    ];
    return facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
  }

  buttonsOf(job) {
    const report = job.has_report && h("a", { href: `/reports/${encodeURIComponent(job.job)}`, target: "_blank", rel: "noopener" }, "Open the report");
    if (!this.feed.process?.allow_changes) return [report];
    const running = ["starting", "training"].includes(job.state);
    const over = ["failed", "stopped"].includes(job.state);
    return [
      report,
      running && h("button", { type: "button", onclick: () => this.change("stop", "Stop", "The job ends without a model. You can resume it later.") }, "Stop the job"),
      over && h("button", { type: "button", onclick: () => this.change("resume", "Resume", "The job continues in the round that it had reached.") }, "Resume the job"),
    ];
  }

  async change(action, word, consequence) {
    if (!(await ask(`${word} ${this.job}?`, consequence, `${word} the job`))) return;
    this.say("asking the coordinator…");
    try {
      await post(`/api/jobs/${encodeURIComponent(this.job)}/${action}`, {});
      this.say("");
    } catch (error) {
      this.say(error.message, true);
    }
  }

  say(text, isBad) {
    this.result.className = isBad ? "note is-bad" : "";
    show(this.result, text);
  }

  tableOf(rounds) {
    const newest = rounds.slice(-(narrow.matches ? NEWEST_NARROW : NEWEST)).reverse();
    const kinds = [...new Set(newest.flatMap((each) => Object.keys(each.kinds ?? {})))].filter((kind) => kind !== "all");
    const has = (name) => newest.some((each) => each[name] !== undefined && each[name] !== null);
    const columns = [
      { title: "round", kind: "name", of: (each) => (each.attempt > 1 ? `${each.round}, attempt ${each.attempt}` : String(each.round)) },
      { title: "loss", kind: "number", of: (each) => number(each.loss, 7) },
      ...(has("log_loss") ? [{ title: "hold-out log loss", kind: "number", of: (each) => number(each.log_loss) }] : []),
      ...(has("auc") ? [{ title: "hold-out AUC", kind: "number", of: (each) => number(each.auc, 4) }] : []),
      { title: "seconds", kind: "number", of: (each) => number(each.seconds, 4) },
      ...kinds.map((kind) => ({ title: `${kind.replaceAll("_", " ")}, s`, kind: "number", of: (each) => number(each.kinds?.[kind], 3) })),
      ...(has("sent") ? [{ title: "sent", kind: "number", of: (each) => bytes(each.sent) }, { title: "received", kind: "number", of: (each) => bytes(each.received) }] : []),
    ];
    const caption = `The last ${newest.length} of ${rounds.length} rounds. Seconds by kind of work, and bytes, are those of this process.`;
    return [h("h2", {}, "Rounds"), table(caption, columns, newest.map((each) => columns.map((column) => column.of(each))))];
  }

  async load() {
    if (!this.settings.open || this.settings.childElementCount > 1) return;
    try {
      const settings = await get(`/api/jobs/${encodeURIComponent(this.job)}/settings`);
      this.settings.append(h("pre", { tabindex: "0" }, JSON.stringify(settings, null, 2)));
    } catch (error) {
      this.settings.append(h("p", { class: "note" }, error.message));
    }
  }
}
