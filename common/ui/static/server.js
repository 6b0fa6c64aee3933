// What this process tells, as it comes, and what is asked of it.

const SILENCE_SECONDS = 15;
const [MIN_PAUSE, MAX_PAUSE] = [1000, 10000];

async function answer(response) {
  const text = await response.text();
  let body;
  try { body = JSON.parse(text); } catch { body = {}; }
  if (!response.ok) throw new Error(body.error || `the process answers with status ${response.status}`);
  return body;
}

export async function get(path) {
  try { return await answer(await fetch(path)); } catch (error) {
    throw error instanceof TypeError ? new Error("the process does not answer") : error;
  }
}

export async function post(path, body) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try { return await answer(await fetch(path, request)); } catch (error) {
    throw error instanceof TypeError ? new Error("the process does not answer") : error;
  }
}

// The state of everything that the process tells. After each connection it tells everything, so nothing is missed.
export class Feed {
  constructor(onChange) {
    this.onChange = onChange;
    this.job = null;
    this.pause = MIN_PAUSE;
    this.is_connected = false;
    this.revision = 0; // of the rounds and the work
    this.process = null;
    this.lost = null;
    this.jobs = new Map();
    this.peers = [];
    this.check = { state: "never", findings: [] };
    this.clear();
    setInterval(() => { if (this.is_connected && Date.now() - this.heard > SILENCE_SECONDS * 1000) this.reconnect(); }, 1000);
  }

  clear() {
    this.notes = [];
    this.rounds = new Map();
    this.work = new Map();
    this.revision += 1;
  }

  open(job) {
    if (job !== this.job) this.clear();
    this.job = job;
    this.connect();
  }

  connect() {
    clearTimeout(this.retry);
    this.source?.close();
    const source = new EventSource(this.job ? `/api/events?job=${encodeURIComponent(this.job)}` : "/api/events");
    this.source = source;
    this.heard = Date.now();
    const told = new Set();
    let isFresh = true;
    const on = (name, take) => source.addEventListener(name, (event) => {
      if (source !== this.source) return;
      this.heard = Date.now();
      take(JSON.parse(event.data));
    });
    on("process", (process) => { this.process = process; });
    on("contact", ({ lost }) => { this.lost = lost; });
    on("job", (job) => { told.add(job.job); this.jobs.set(job.job, { ...job, at: Date.now() }); });
    on("gone", ({ job }) => this.jobs.delete(job));
    on("peers", (peers) => { this.peers = peers; });
    on("check", (check) => { this.check = check; });
    on("notes", ({ job, notes }) => { if (job === this.job) this.notes = notes; });
    on("rounds", (news) => this.take(this.rounds, news));
    on("work", (news) => this.take(this.work, news));
    on("beat", () => {
      if (isFresh) for (const name of [...this.jobs.keys()]) if (!told.has(name)) this.jobs.delete(name);
      isFresh = false;
      this.is_connected = true;
      this.pause = MIN_PAUSE;
      this.onChange();
    });
    source.onerror = () => { if (source === this.source) this.reconnect(); };
  }

  reconnect() {
    this.is_connected = false;
    this.source.close();
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), this.pause);
    this.pause = Math.min(2 * this.pause, MAX_PAUSE);
    this.onChange();
  }

  take(known, { job, is_from_start, lines }) {
    if (job !== this.job) return;
    if (is_from_start) known.clear();
    // A later attempt at a round replaces an earlier one.
    for (const line of lines) known.set(line.round, line);
    this.revision += 1;
  }
}
