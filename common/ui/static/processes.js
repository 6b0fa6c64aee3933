// This process and its peers, and the check of this process.

import { h, show } from "/dom.js";
import { post } from "/server.js";
import { lostNote } from "/jobs.js";
import { counted, time } from "/words.js";

export class ProcessesView {
  section = "processes";
  title = "Processes";
  job = null;

  constructor(feed) {
    this.feed = feed;
    this.note = h("div");
    this.cards = h("div", { class: "cards" });
    this.button = h("button", { type: "button", onclick: () => this.begin() }, "Check this process");
    this.result = h("p", { role: "status" });
    this.findings = h("div");
    this.element = h("div", {}, h("h1", {}, "Processes"), this.note, this.cards, h("h2", {}, "Check"),
      h("p", { class: "soft" }, "Looks for problems before a training: settings, tables, certificates, peers, clocks and disk."),
      h("p", { class: "buttons" }, this.button), this.result, this.findings);
  }

  update() {
    const { feed } = this;
    show(this.note, lostNote(feed));
    show(this.cards, feed.process && this.own(feed.process), feed.peers.map((peer) => this.peer(peer)));
    const { check } = feed;
    this.button.disabled = check.state === "running" || !feed.process?.can_check;
    show(this.findings, check.state === "never" ? [] : [
      h("p", { role: "status" }, this.summary(check)),
      h("ul", { class: "findings" }, check.findings.map((finding) => h("li", {}, h("span", { class: `level level-${finding.level}` }, finding.level), h("span", {}, finding.text)))),
    ]);
  }

  summary(check) {
    if (check.state === "running") return "The check runs…";
    const counts = `${counted(check.n_problems, "problem")}, ${counted(check.n_warnings, "warning")}`;
    return check.state === "failed" ? `The check could not be completed: ${check.detail}` : `Checked at ${time(check.begun)}: ${counts}`;
  }

  own(process) {
    return h("section", { class: "card" }, h("h2", {}, `This process: the ${process.role}`),
      h("p", { class: this.feed.is_connected ? "is-well" : "is-away" }, this.feed.is_connected ? "serving" : "not connected"),
      h("p", {}, `release ${process.version}, since ${time(process.started)}`),
      h("p", { class: "soft" }, process.allow_changes ? "This page can start and stop jobs." : "This page can only look."));
  }

  peer(peer) {
    const isUnknown = peer.is_well === undefined;
    return h("section", { class: "card" }, h("h2", {}, `The ${peer.role}`),
      h("p", { class: isUnknown ? "soft" : peer.is_well ? "is-well" : "is-away" }, isUnknown ? "asking…" : peer.is_well ? "answers" : "does not answer as it should"),
      h("p", {}, [peer.address, peer.version && `release ${peer.version}`].filter(Boolean).join(", ")),
      Math.abs(peer.clock_ahead ?? 0) >= 2 && h("p", { class: "level-warning" }, `its clock is ${peer.clock_ahead} s ahead`),
      peer.detail && h("p", {}, peer.detail));
  }

  async begin() {
    this.result.className = "";
    show(this.result, "");
    try {
      await post("/api/check", {});
    } catch (error) {
      this.result.className = "note is-bad";
      show(this.result, error.message);
    }
  }
}
