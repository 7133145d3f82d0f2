// Rates, from counters that come again and again: the manager passes on what memory nodes count, this page remembers some
// of it. Nothing is known before the second report.

import { svg } from "./dom.js";

/** A rate covers about this much time, in milliseconds: shorter ones jump about. */
const WINDOW_MS = 3000;
/** Samples nearer to each other than this are one. */
const APART_MS = 400;
/** Rates kept for a curve. */
const CURVE = 60;

/** The rates of some counters of one node. */
export class Rates {
  #samples = [];
  /** Per second, by counter; `null` while unknown. */
  now = null;
  /** What was summed up for the curve, oldest first. */
  curve = [];

  /** Takes in counters as they were at a moment; `null`: there are none any more. */
  feed(atMs, counters) {
    if (counters === null) {
      this.#samples = [];
      this.now = null;
      return;
    }
    const newest = this.#samples.at(-1);
    if (newest && atMs - newest.atMs < APART_MS) return;
    // Counters that went back are of another life.
    if (newest && Object.keys(counters).some((name) => counters[name] < newest.counters[name])) this.#samples = [];
    this.#samples.push({ atMs, counters });
    while (this.#samples.length > 2 && this.#samples[1].atMs <= atMs - WINDOW_MS) this.#samples.shift();
    const base = this.#samples[0];
    if (base.atMs === atMs) {
      this.now = null;
      return;
    }
    const seconds = (atMs - base.atMs) / 1000;
    const perSecond = (name) => (counters[name] - base.counters[name]) / seconds;
    this.now = Object.fromEntries(Object.keys(counters).map((name) => [name, perSecond(name)]));
  }

  /** Adds a value to the curve. */
  draw(value) {
    this.curve.push(value);
    if (this.curve.length > CURVE) this.curve.shift();
  }
}

/** Rates of many nodes, by name; those of nodes that are gone are forgotten. */
export class Traffic {
  #rates = new Map();

  /** Feeds one node and returns its rates. */
  feed(key, atMs, counters) {
    if (!this.#rates.has(key)) this.#rates.set(key, new Rates());
    const rates = this.#rates.get(key);
    rates.feed(atMs, counters);
    return rates;
  }

  /** Keeps only these. */
  retain(keys) {
    const wanted = new Set(keys);
    for (const key of this.#rates.keys()) if (!wanted.has(key)) this.#rates.delete(key);
  }

  /** What is known of a node. */
  of(key) {
    return this.#rates.get(key);
  }
}

/** A curve without axes, and a function that draws values into it. For the eye only: the figure stands beside it. */
export function sparkline() {
  const line = svg("polyline", { class: "line" });
  const area = svg("polygon", { class: "area" });
  const picture = svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${CURVE - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" },
    area,
    line,
  );
  const draw = (values) => {
    const top = Math.max(...values, 1e-9);
    const first = CURVE - values.length;
    const points = values.map((value, i) => `${first + i},${(19 - (18 * value) / top).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", points.length ? `${first},20 ${points.join(" ")} ${CURVE - 1},20` : "");
  };
  return [picture, draw];
}
