// What is wrong, and what to do about it: each problem names its node or region, and the command that helps. Which regions
// they are is asked of the manager, a few of each state, as there may be a hundred thousand.

import { ask } from "./api.js";
import { badge, byId, h, keyed, text } from "./dom.js";
import { count, some, span } from "./format.js";
import { nameOf } from "./nodes.js";

/** Problems of a kind that are named; of the others, how many there are. */
const NAMED = 4;
/** States of regions that are problems. */
const TROUBLED = ["lost", "degraded", "exposed"];

let regions = { lost: [], degraded: [], exposed: [] };

const total = (overview, state) => overview.regions.find((of) => of.state === state)?.regions ?? 0;

/** Asks which regions are in trouble, if any is; with an event, or while those known are not all there are. */
export async function fetchRegions(overview, happened) {
  const found = await Promise.all(TROUBLED.map(async (state) => {
    const there = total(overview, state);
    if (there === 0) return [];
    if (!happened && regions[state].length === Math.min(there, NAMED)) return regions[state];
    const page = await ask("overview/regions", { state, limit: NAMED });
    return page.regions;
  }));
  regions = Object.fromEntries(TROUBLED.map((state, index) => [state, found[index]]));
}

/** A problem: `kind` as badges have it, whose it is, what is wrong, and what to do, of texts and `{ code }`. */
const problem = (kind, subject, label, what, remedy) => ({ key: `${subject.kind} ${subject.id} ${label}`, kind, subject, label, what, remedy });

const code = (command) => ({ code: command });

function memoryNodeSilent(node, overview) {
  const since = node.reported_ms === null ? "" : ` for ${span(overview.time_ms - node.reported_ms)}`;
  const holds = node.regions ? `: ${some(node.regions, "region")} ${node.regions === 1 ? "has" : "have"} a part on it` : "";
  return problem("bad", { kind: "memory_node", id: node.name, name: node.name }, "unreachable",
    `Memory node ${node.name} has been silent${since}${holds}.`,
    ["On its machine, ", code("systemctl status mn-server"), " and ", code("mn-server doctor"),
      " say what it lacks. If it is gone for good: ", code(`gmm forget ${node.name}`)]);
}

function computeNodeSilent(node) {
  const name = nameOf(node);
  return problem("bad", { kind: "compute_node", id: node.cn_id, name }, "unreachable",
    `Compute node ${name} is silent${node.regions ? `; its ${some(node.regions, "region")} stay` : ""}.`,
    ["On its machine, ", code("systemctl status cn-agent"), " and ", code("cn-agent doctor"), " say what it lacks."]);
}

function held(node) {
  const name = nameOf(node);
  return problem("warn", { kind: "compute_node", id: node.cn_id, name }, "suspended",
    `Compute node ${name} is suspended: it has no region attached.`, ["Resume it: ", code(`gmm release ${name}`)]);
}

function congested(node) {
  return problem("warn", { kind: "memory_node", id: node.name, name: node.name }, "congested",
    `Memory node ${node.name} is congested: more requests come than it executes.`,
    ["Give it more cores (", code("mn-server --workers"), "), or spread regions over more memory nodes."]);
}

function lost(region) {
  return problem("bad", { kind: "region", id: region.name, name: region.name }, "lost",
    `Region ${region.name} of ${region.owner_name ?? region.owner} has lost content: a memory node came back without it.`,
    ["Go on with zeros in its place: ", code(`gmm reset-region ${region.name}`), "; or give its memory back: ",
      code(`gmm destroy-region --force ${region.name}`)]);
}

function degraded(region, silent) {
  const away = region.memory_nodes.filter((name) => silent.has(name));
  const whom = away.length ? away.join(", ") : "a memory node";
  return problem("warn", { kind: "region", id: region.name, name: region.name }, "degraded",
    `Region ${region.name} of ${region.owner_name ?? region.owner} waits for ${whom}: what lies there cannot be reached.`,
    [`It goes on by itself when ${away.length === 1 ? "that node is" : "they are"} back, with its content if the pool kept it.`]);
}

function exposed(region, silent) {
  const away = region.memory_nodes.filter((name) => silent.has(name));
  const why = away.length ? `a copy is on ${away.join(", ")}, which cannot be reached` : "a copy of it is not filled";
  return problem("warn", { kind: "region", id: region.name, name: region.name }, "exposed",
    `Region ${region.name} of ${region.owner_name ?? region.owner} works with one copy: ${why}.`,
    ["It has both again once the agent has filled the copy; ", code(`gmm list -R -r ${region.name}`), " shows the copies."]);
}

/** Everything that is wrong, the worst first: the problems named, how many there are, and the states with more regions. */
export function find(overview) {
  const silent = overview.memory_nodes.filter((node) => node.health === "unreachable");
  const silentNames = new Set(silent.map((node) => node.name));
  const kinds = [
    [silent, (node) => memoryNodeSilent(node, overview)],
    [overview.compute_nodes.filter((node) => node.health === "unreachable"), computeNodeSilent],
    [overview.memory_nodes.filter((node) => node.traffic?.congested), congested],
    [overview.compute_nodes.filter((node) => node.held), held],
  ];
  const named = kinds.flatMap(([nodes, say]) => nodes.slice(0, NAMED).map(say));
  const more = kinds.reduce((sum, [nodes]) => sum + Math.max(0, nodes.length - NAMED), 0);
  named.push(...regions.lost.map(lost), ...regions.degraded.map((region) => degraded(region, silentNames)),
    ...regions.exposed.map((region) => exposed(region, silentNames)));
  named.sort((a, b) => Number(a.kind !== "bad") - Number(b.kind !== "bad"));
  const rest = TROUBLED.map((state) => [state, total(overview, state) - regions[state].length]).filter(([, left]) => left > 0);
  return { named, more, rest };
}

/** Shows them; `actions`: `open(kind, id)`, `state(name)`. */
export function show(overview, actions) {
  const { named, more, rest } = find(overview);
  byId("trouble").hidden = named.length === 0;
  keyed(byId("trouble-list"), named, (one) => one.key, ({ kind, label, subject }) => {
    const what = h("p", { class: "what" });
    const remedy = h("p", { class: "remedy" });
    const name = h("button", { class: "link title", onclick: () => actions.open(subject.kind, subject.id) }, subject.name);
    const line = h("li", { class: kind }, h("div", { class: "trouble-top" }, badge(kind, label), name), what, remedy);
    let written = "";
    return [line, (now) => {
      text(what, now.what);
      const said = JSON.stringify(now.remedy);
      if (said === written) return;
      written = said;
      remedy.replaceChildren(...now.remedy.map((part) => (part.code ? h("code", {}, part.code) : part)));
    }];
  });
  keyed(byId("trouble-rest"), rest, ([state]) => state, ([state]) => {
    const button = h("button", { class: "link", onclick: () => actions.state(state) });
    return [h("li", {}, button), ([, left]) => text(button, `${count(left)} more ${left === 1 ? "region is" : "regions are"} ${state}`)];
  });
  const others = byId("trouble-nodes");
  others.hidden = more === 0;
  text(others, `${some(more, "more node")} below.`);
}
