// The audit log of this process, the newest lines first.

import { h, show, table } from "/dom.js";
import { get } from "/server.js";
import { lostNote } from "/jobs.js";
import { counted } from "/words.js";

const DECISIONS = ["allowed", "refused", "ended", "closed", "changed", "restored", "repaired"];
const ROLES = ["host", "guest", "coordinator"];
const IN_COLUMNS = ["time", "number", "decision", "role", "certificate", "method", "job"];
const COLUMNS = [
  { title: "line", kind: "name" }, { title: "time", kind: "time" }, { title: "decision" }, { title: "caller", kind: "words" }, { title: "method" }, { title: "job", kind: "long" }, { title: "more", kind: "detail" },
];

function caller(line) {
  return [line.role, ...(line.certificate ?? [])].filter(Boolean).join(", ");
}

function more(line) {
  const rest = Object.entries(line).filter(([name]) => !IN_COLUMNS.includes(name));
  return rest.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join("; ");
}

export class AuditView {
  section = "audit";
  title = "Audit log";
  job = null;

  constructor(feed) {
    this.feed = feed;
    this.note = h("div");
    this.list = h("div");
    this.lines = [];
    const choice = (name, label, values) => h("p", {}, h("label", { for: `filter-${name}` }, label),
      h("select", { id: `filter-${name}`, onchange: () => this.load() }, h("option", { value: "" }, "all"), values.map((value) => h("option", { value }, value))));
    const text = (name, label) => h("p", {}, h("label", { for: `filter-${name}` }, label),
      h("input", { id: `filter-${name}`, type: "search", autocomplete: "off", onchange: () => this.load() }));
    this.filters = h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
      choice("decision", "Decision", DECISIONS), choice("role", "Caller", ROLES), text("job", "Job"), text("method", "Method"));
    this.older = h("button", { type: "button", hidden: true, onclick: () => this.load(this.before) }, "Older lines");
    this.newer = h("button", { type: "button", onclick: () => this.load() }, "Newest lines");
    this.status = h("p", { role: "status", class: "soft" });
    this.element = h("div", {}, h("h1", {}, "Audit log"), this.note,
      h("p", { class: "soft" }, "Who asked for what, and what was decided. `trilateral audit verify` checks that no line was changed."),
      this.filters, this.status, this.list, h("p", { class: "buttons" }, this.newer, this.older));
    this.load();
  }

  update() {
    show(this.note, lostNote(this.feed));
  }

  async load(before) {
    const query = new URLSearchParams();
    for (const field of this.filters.elements) if (field.value.trim()) query.set(field.id.replace("filter-", ""), field.value.trim());
    if (before) query.set("before", before);
    const asked = (this.asked = Symbol("asked"));
    try {
      const page = await get(`/api/audit?${query}`);
      if (asked !== this.asked) return;
      this.before = page.before;
      this.older.hidden = page.before === null;
      show(this.status, `${counted(page.lines.length, "line")}${before ? ` before line ${before}` : ""}`);
      show(this.list, page.lines.length ? table("Lines of the audit log", COLUMNS, page.lines.map((line) => [
        String(line.number), line.time.replace("T", " ").replace("+00:00", ""), line.decision, caller(line), line.method ?? "", line.job ?? "", more(line),
      ])) : []);
    } catch (error) {
      if (asked === this.asked) show(this.status, error.message);
    }
  }
}
