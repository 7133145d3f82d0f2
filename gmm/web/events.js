// The event log: the latest events, newest first, in words and by day. What happened many times within a short while is one
// entry, which opens.

import { byId, h, keyed, text } from "./dom.js";
import { bytes, day, moment, some, time, words, zone } from "./format.js";

/** Events shown at most. */
export const EVENTS_MAX = 150;
/** Events of one kind are one entry from this many on. */
const TOGETHER = 3;
/** And while they are no further apart than this, in milliseconds. */
const NEAR_MS = 60_000;
/** Names in the line of such an entry. */
const NAMES = 4;

let known = [];

const BAD = new Set(["memory_node_unreachable", "memory_node_refused", "compute_node_unreachable", "memory_node_forgotten"]);
const GOOD = new Set(["memory_node_reachable", "compute_node_reachable"]);

function level(event) {
  if (BAD.has(event.event) || ["lost", "degraded"].includes(event.state)) return "bad";
  if (GOOD.has(event.event) || event.state === "active") return "good";
  return "plain";
}

/** Each kind in a sentence; `who` names a compute node by its CN id. */
const SENTENCES = {
  manager_started: (e) => `The manager took over, term ${e.term}.`,
  memory_node_registered: (e) => `Memory node ${e.memory_node} registered with ${bytes(e.pool_bytes)}.`,
  memory_node_unreachable: (e) => `Memory node ${e.memory_node} is silent.`,
  memory_node_reachable: (e) => `Memory node ${e.memory_node} is heard of again.`,
  memory_node_refused: (e) => `Memory node ${e.memory_node} refused region ${e.region}: ${e.error}`,
  memory_node_forgotten: (e) => `Memory node ${e.memory_node} was forgotten.`,
  compute_node_registered: (e) => `Compute node ${e.name} registered.`,
  compute_node_unreachable: (e, who) => `Compute node ${who(e.compute_node)} is silent.`,
  compute_node_reachable: (e, who) => `Compute node ${who(e.compute_node)} is heard of again.`,
  compute_node_held: (e, who) => `Compute node ${who(e.compute_node)} is suspended.`,
  compute_node_released: (e, who) => `Compute node ${who(e.compute_node)} is released.`,
  region_changed: (e, who) =>
    `Region ${e.region} of ${who(e.owner)} is ${e.state}${e.reason ? `: ${e.reason}` : "."}`,
  region_destroyed: (e, who) => `Region ${e.region} of ${who(e.owner)} is gone.`,
  ld_allocated: (e) => `LD ${e.ld} of ${e.memory_node} has ${bytes(e.reserved)} reserved.`,
  ld_bound: (e, who) => `LD ${e.ld} of ${e.memory_node} is bound to ${who(e.compute_node)}.`,
  ld_unbinding: (e, who) => `LD ${e.ld} of ${e.memory_node} is being unbound from ${who(e.compute_node)}.`,
  ld_unbound: (e, who) => `LD ${e.ld} of ${e.memory_node} is unbound from ${who(e.compute_node)}.`,
  leg_stale: (e, who) => `The part of region ${e.region} of ${who(e.owner)} on ${e.memory_node} is stale: ${e.reason}.`,
  leg_filled: (e, who) => `The part of region ${e.region} of ${who(e.owner)} on ${e.memory_node} is filled.`,
  protection_changed: (e, who) =>
    `Region ${e.region} of ${who(e.owner)} has ${e.protect === "mirror" ? "two copies" : "one copy"} from now on.`,
  spare_added: (e, who) =>
    `Region ${e.region} of ${who(e.owner)} gets a copy on ${e.memory_node}${e.replaces ? ` in place of ${e.replaces}` : ""}.`,
  spare_missing: (e, who) => `Region ${e.region} of ${who(e.owner)} lacks a copy: ${e.reason}.`,
  region_relocating: (e) =>
    e.to
      ? `Region ${e.region} moves from memory node ${e.memory_node} to ${e.to}.`
      : `Region ${e.region} does not move from memory node ${e.memory_node} any more.`,
  region_shared: (e, who) => `${who(e.reader)} may read region ${e.region}.`,
  region_unshared: (e, who) => `${who(e.reader)} may not read region ${e.region} any more.`,
  region_moved: (e, who) => `Region ${e.region} moved from ${who(e.from)} to ${who(e.owner)}.`,
  memory_node_draining: (e) => `Memory node ${e.memory_node} is being drained.`,
  memory_node_drain_stopped: (e) => `Memory node ${e.memory_node} is not drained any more.`,
  quota_set: (e, who) =>
    `Compute node ${who(e.compute_node)} may have ${e.bytes == null ? "any amount" : bytes(e.bytes)}.`,
  aer_generated: (e, who) => `An AER event was generated at vPPB ${e.vppb} of ${who(e.compute_node)}.`,
};

function sentence(event, who) {
  return Object.hasOwn(SENTENCES, event.event) ? SENTENCES[event.event](event, who) : words(event.event);
}

/** Many of a kind in a phrase: what they are of, and what they did; the last argument is their first. */
const MANY = {
  memory_node_registered: ["memory node", () => "registered"],
  memory_node_unreachable: ["memory node", () => "are silent"],
  memory_node_reachable: ["memory node", () => "are heard of again"],
  memory_node_refused: ["region", (e) => `were refused by ${e.memory_node}`],
  compute_node_registered: ["compute node", () => "registered"],
  compute_node_unreachable: ["compute node", () => "are silent"],
  compute_node_reachable: ["compute node", () => "are heard of again"],
  region_changed: ["region", (e, who) => `of ${who(e.owner)} are ${e.state}${e.reason ? `: ${e.reason}` : ""}`],
  region_destroyed: ["region", (e, who) => `of ${who(e.owner)} are gone`],
};

/** What an event is about, for a list of names. */
const subject = (event, who) =>
  event.region ?? event.memory_node ?? event.name ?? (event.compute_node ? who(event.compute_node) : null);

function summary(events, who) {
  const first = events[0];
  if (!Object.hasOwn(MANY, first.event)) return `${some(events.length, "event")}: ${words(first.event)}`;
  const [noun, did] = MANY[first.event];
  const names = [...new Set(events.map((event) => subject(event, who)))];
  const more = names.length > NAMES ? ` and ${names.length - NAMES} more` : "";
  return `${some(names.length, noun)} ${did(first, who)}: ${names.slice(0, NAMES).join(", ")}${more}.`;
}

/** What makes events one entry. */
const likeness = (e) => JSON.stringify([e.event, e.state, e.owner, e.reason, e.event === "memory_node_refused" ? e.memory_node : null, day(e.time_ms)]);

/** Entries of events that come newest first: lists of those that belong together. */
export function grouped(events) {
  const open = new Map();
  const groups = [];
  for (const event of events) {
    const like = likeness(event);
    const group = open.get(like);
    if (group && group.at(-1).time_ms - event.time_ms <= NEAR_MS) {
      group.push(event);
    } else {
      const begun = [event];
      open.set(like, begun);
      groups.push(begun);
    }
  }
  return groups.flatMap((group) => (group.length < TOGETHER ? group.map((event) => [event]) : [group])).sort((a, b) => b[0].seq - a[0].seq);
}

/** Takes in a part of the log; `anew`: what is known is of another log. */
export function take(page, anew) {
  known = [...(anew ? [] : known), ...page.events].slice(-EVENTS_MAX);
}

function one(event, who) {
  const when = h("time", { datetime: new Date(event.time_ms).toISOString(), title: moment(event.time_ms) }, time(event.time_ms));
  const what = h("span", { class: "what" }, sentence(event, who));
  return [h("li", { class: level(event) }, when, what), () => {}];
}

function many(events, who) {
  const when = h("time");
  const what = h("span", { class: "what" });
  const list = h("ol");
  const entry = h("li", { class: `${level(events[0])} many` }, when, h("details", {}, h("summary", {}, what), list));
  return [entry, (now) => {
    const [newest, oldest] = [now[0].time_ms, now.at(-1).time_ms];
    when.setAttribute("datetime", new Date(newest).toISOString());
    when.title = `${moment(oldest)} to ${moment(newest)}`;
    text(when, time(newest));
    text(what, summary(now, who));
    keyed(list, now, (event) => event.seq, (event) => one(event, who));
  }];
}

/** Shows the log; `who` names compute nodes. */
export function show(who) {
  byId("no-events").hidden = known.length > 0;
  text(byId("events-zone"), known.length ? zone() : "");
  const entries = [];
  let last = null;
  for (const events of grouped(known.toReversed())) {
    const date = day(events[0].time_ms);
    if (date !== last) entries.push({ key: `day ${date}`, date });
    last = date;
    entries.push({ key: events.length > 1 ? `many ${events.at(-1).seq}` : events[0].seq, events });
  }
  keyed(byId("events"), entries, ({ key }) => key, ({ date, events }) => {
    if (date) return [h("li", { class: "day" }, date), () => {}];
    const [element, update] = events.length > 1 ? many(events, who) : one(events[0], who);
    return [element, ({ events: now }) => update(now)];
  });
}
