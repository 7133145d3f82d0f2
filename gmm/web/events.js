// The event log: the latest events, newest first, in words.

import { byId, h, keyed } from "./dom.js";
import { bytes, moment, time, words } from "./format.js";

/** Events shown at most. */
export const EVENTS_MAX = 150;

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
  compute_node_held: (e, who) => `Compute node ${who(e.compute_node)} is held in reset.`,
  compute_node_released: (e, who) => `Compute node ${who(e.compute_node)} is released.`,
  region_changed: (e, who) =>
    `Region ${e.region} of ${who(e.owner)} is ${e.state}${e.reason ? `: ${e.reason}` : "."}`,
  region_destroyed: (e, who) => `Region ${e.region} of ${who(e.owner)} is gone.`,
  ld_allocated: (e) => `LD ${e.ld} of ${e.memory_node} has ${bytes(e.reserved)} set aside.`,
  ld_bound: (e, who) => `LD ${e.ld} of ${e.memory_node} is bound to ${who(e.compute_node)}.`,
  ld_unbinding: (e, who) => `LD ${e.ld} of ${e.memory_node} is being unbound from ${who(e.compute_node)}.`,
  ld_unbound: (e, who) => `LD ${e.ld} of ${e.memory_node} is unbound from ${who(e.compute_node)}.`,
  quota_set: (e, who) =>
    `Compute node ${who(e.compute_node)} may have ${e.bytes == null ? "any amount" : bytes(e.bytes)}.`,
  aer_generated: (e, who) => `An AER event was generated at vPPB ${e.vppb} of ${who(e.compute_node)}.`,
};

function sentence(event, who) {
  return Object.hasOwn(SENTENCES, event.event) ? SENTENCES[event.event](event, who) : words(event.event);
}

/** Takes in a part of the log; `anew`: what is known is of another log. */
export function take(page, anew) {
  known = [...(anew ? [] : known), ...page.events].slice(-EVENTS_MAX);
}

/** Shows the log; `who` names compute nodes. */
export function show(who) {
  byId("no-events").hidden = known.length > 0;
  keyed(byId("events"), known.toReversed(), (event) => event.seq, (event) => {
    const when = h("time", { datetime: new Date(event.time_ms).toISOString(), title: moment(event.time_ms) }, time(event.time_ms));
    const what = h("span", { class: "what" }, sentence(event, who));
    return [h("li", { class: level(event) }, when, what), () => {}];
  });
}
