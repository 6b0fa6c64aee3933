// A line chart in SVG. It follows the theme, reads aloud as one sentence, and the arrow keys move along its points.

import { h, svg } from "/dom.js";
import { number } from "/words.js";

const [MIN_WIDTH, HEIGHT] = [260, 260];
const [LEFT, RIGHT, TOP, BOTTOM] = [62, 14, 12, 40];
const MAX_POINTS = 500;

function ticks(low, high, count) {
  const step = 10 ** Math.floor(Math.log10((high - low) / count || 1));
  const wide = [1, 2, 5, 10].map((factor) => factor * step).find((each) => (high - low) / each <= count) || step * 10;
  const found = [];
  for (let at = Math.ceil(low / wide) * wide; at <= high + wide * 1e-9; at += wide) found.push(Number(at.toPrecision(12)));
  return found;
}

// Of neighbouring points, keep the lowest and the highest: so no extreme is lost.
function thin(points) {
  const size = Math.ceil(points.length / (MAX_POINTS / 2));
  if (size <= 2) return points;
  const kept = [];
  for (let at = 0; at < points.length; at += size) {
    const group = points.slice(at, at + size);
    const low = group.reduce((one, other) => (other.y < one.y ? other : one));
    const high = group.reduce((one, other) => (other.y > one.y ? other : one));
    kept.push(...[low, high].sort((one, other) => one.x - other.x).filter((each, place, both) => !place || each !== both[0]));
  }
  return kept;
}

export class Chart {
  constructor(title, yTitle, { fromZero = false, unit = "" } = {}) {
    Object.assign(this, { title, yTitle, fromZero, unit, points: [], chosen: null, width: 560 });
    this.image = svg("svg", {
      class: "chart", role: "img", tabindex: "0", "aria-label": title,
      onkeydown: (event) => this.move(event), onpointermove: (event) => this.point(event), onpointerleave: () => this.choose(null),
    });
    this.readout = h("p", { class: "readout", "aria-live": "off" });
    this.element = h("figure", {}, h("figcaption", {}, title), this.image, this.readout);
    // One unit is one pixel, so that the text has its size on every screen.
    new ResizeObserver(([{ contentRect }]) => {
      const width = Math.max(MIN_WIDTH, Math.round(contentRect.width));
      if (contentRect.width && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.element);
    this.draw();
  }

  set(points) {
    const known = points.filter((point) => point.y !== null && point.y !== undefined);
    if (known.length === this.points.length && known.every((each, place) => each.x === this.points[place].x && each.y === this.points[place].y) && known.length) return;
    this.points = known;
    if (this.chosen !== null && this.chosen >= known.length) this.chosen = null;
    this.draw();
  }

  draw() {
    const { points, image, width } = this;
    image.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (!points.length) {
      image.setAttribute("aria-label", `${this.title}: no round yet`);
      image.replaceChildren(svg("text", { x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no round yet"));
      this.read();
      return;
    }
    const [xs, ys] = [points.map((each) => each.x), points.map((each) => each.y)];
    let [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
    if (this.fromZero) low = Math.min(low, 0);
    if (high === low) [low, high] = [low - Math.abs(low) / 10 - 1e-9, high + Math.abs(high) / 10 + 1e-9];
    const [first, last] = [xs[0], Math.max(xs[xs.length - 1], xs[0] + 1)];
    this.x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - RIGHT);
    this.y = (at) => HEIGHT - BOTTOM - ((at - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const at of ticks(low, high, 5)) {
      parts.push(svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: this.y(at), y2: this.y(at) }));
      parts.push(svg("text", { x: LEFT - 6, y: this.y(at) + 4, "text-anchor": "end" }, number(at, 4)));
    }
    for (const at of ticks(first, last, Math.max(3, Math.round(width / 90))).filter(Number.isInteger)) {
      parts.push(svg("text", { x: this.x(at), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, String(at)));
    }
    parts.push(svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "round"));
    const middle = (TOP + HEIGHT - BOTTOM) / 2;
    parts.push(svg("text", { x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` }, this.yTitle));
    const drawn = thin(points);
    parts.push(svg("path", { class: "series", d: drawn.map((each, place) => `${place ? "L" : "M"}${this.x(each.x).toFixed(1)} ${this.y(each.y).toFixed(1)}`).join("") }));
    if (points.length <= 30) parts.push(...points.map((each) => svg("circle", { class: "point", r: 3, cx: this.x(each.x), cy: this.y(each.y) })));
    this.mark = svg("g");
    image.replaceChildren(...parts, this.mark);
    const newest = points[points.length - 1];
    image.setAttribute("aria-label", `${this.title}: ${points.length} rounds, from ${this.value(points[0].y)} in round ${points[0].x} to ${this.value(newest.y)} in round ${newest.x}. Use the arrow keys to read each round.`);
    this.read();
  }

  value(y) { return `${number(y)}${this.unit}`; }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const end = { Home: 0, End: this.points.length - 1 }[event.key];
    if ((step === undefined && end === undefined) || !this.points.length) return;
    event.preventDefault();
    this.readout.setAttribute("aria-live", "polite");
    const now = this.chosen === null ? this.points.length - (step === -1 ? 0 : 1) : this.chosen;
    this.choose(Math.min(this.points.length - 1, Math.max(0, end ?? now + step)));
  }

  point(event) {
    if (!this.points.length) return;
    const box = this.image.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * this.width;
    let best = 0;
    this.points.forEach((each, place) => { if (Math.abs(this.x(each.x) - at) < Math.abs(this.x(this.points[best].x) - at)) best = place; });
    this.choose(best);
  }

  choose(place) {
    this.chosen = place;
    this.read();
  }

  read() {
    const point = this.points[this.chosen ?? this.points.length - 1];
    this.readout.textContent = point ? `round ${point.x}: ${this.value(point.y)}` : "";
    if (!this.mark) return;
    this.mark.replaceChildren();
    if (point && this.chosen !== null) {
      this.mark.append(
        svg("line", { class: "hover", x1: this.x(point.x), x2: this.x(point.x), y1: TOP, y2: HEIGHT - BOTTOM }),
        svg("circle", { class: "point", r: 5, cx: this.x(point.x), cy: this.y(point.y) }));
    }
  }
}
