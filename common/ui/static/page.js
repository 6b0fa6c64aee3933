// The page: it shows one of the views, by the part of the address after #, and brings it up to date with the news.

import { show } from "/dom.js";
import { Feed } from "/server.js";
import { AuditView } from "/audit.js";
import { JobView } from "/job.js";
import { JobsView } from "/jobs.js";
import { ProcessesView } from "/processes.js";

const main = document.getElementById("main");
const feed = new Feed(update);
let view = null;

function viewFor(path) {
  const [section, name] = path.split("/").slice(1).map(decode);
  if (section === "jobs" && name) return new JobView(feed, name);
  if (section === "processes") return new ProcessesView(feed);
  if (section === "audit") return new AuditView(feed);
  return new JobsView(feed);
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function navigate() {
  const isFirst = view === null;
  view = viewFor(location.hash.slice(1));
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.getAttribute("href") === `#/${view.section}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren(view.element);
  if (!isFirst) {
    main.focus();
    scrollTo(0, 0);
  }
  if (isFirst || feed.job !== view.job) feed.open(view.job);
  update();
}

function update() {
  const connection = document.getElementById("connection");
  const text = feed.is_connected ? "connected" : feed.process === null ? "connecting…" : "not connected: trying again";
  show(connection, text);
  connection.classList.toggle("is-lost", !feed.is_connected && feed.process !== null);
  const role = feed.process?.role ?? "";
  show(document.getElementById("role"), role && `at the ${role}`);
  document.title = [view.title, role && `trilateral, ${role}`].filter(Boolean).join(" · ");
  view.update();
}

addEventListener("hashchange", navigate);
setInterval(() => { if (feed.is_connected) update(); }, 1000);
navigate();
