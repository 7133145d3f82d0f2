// Memory nodes and compute nodes as cards: how full, whose, how busy, how well. Those that need attention come first.

import { badge, byId, h, keyed, text } from "./dom.js";
import { bytes, percent, short, some, span } from "./format.js";
import { Traffic, sparkline } from "./traffic.js";

/** Cards of a kind shown before somebody asks for more. */
const CARDS = 48;
/** Colours there are for compute nodes; style.css defines them. */
const COLOURS = 10;

const colours = new Map();
const traffic = { memory: new Traffic(), compute: new Traffic(), total: [] };
const shown = { memory: CARDS, compute: CARDS };

/** The colour of a compute node, the same as long as the page is open. */
export function colourOf(cnId) {
  if (!colours.has(cnId)) colours.set(cnId, colours.size % COLOURS);
  return colours.get(cnId);
}

/** What a compute node is called: its name, or its CN id while it has none. */
export const nameOf = (node) => node.name ?? node.cn_id;

const HEALTH = { reachable: "good", unreachable: "bad", unregistered: "plain" };

/** Fills a bar with parts: `[class, share of the whole]`; the rest stays empty. */
export function fillBar(bar, label, whole, parts) {
  bar.setAttribute("aria-label", label);
  keyed(bar, parts.filter(([, part]) => part > 0), ([kind]) => kind, ([kind]) => {
    const piece = h("span", { class: kind });
    return [piece, ([, part]) => piece.style.setProperty("width", `${(100 * part) / Math.max(whole, 1)}%`)];
  });
}

/** A line of short phrases, each kept together where the line breaks. */
function phrases(line, said) {
  keyed(line, said.map((phrase, index) => ({ phrase, index })), ({ index }) => index, () => {
    const part = h("span");
    return [part, ({ phrase }) => text(part, phrase)];
  });
}

/** Takes in the counters of all nodes. */
export function feed(overview) {
  // In the manager's order, so that the first few have the clearest colours.
  for (const node of overview.compute_nodes) colourOf(node.cn_id);
  for (const node of overview.memory_nodes) {
    const { rx_bytes, tx_bytes, requests } = node.traffic ?? {};
    const counts = node.traffic && node.health === "reachable" ? { rx_bytes, tx_bytes, requests } : null;
    const rates = traffic.memory.feed(node.name, node.reported_ms ?? 0, counts);
    if (rates.now) rates.draw(rates.now.rx_bytes + rates.now.tx_bytes);
  }
  for (const node of overview.compute_nodes) {
    const counts = node.requests === null || node.health === "unreachable" ? null : { requests: node.requests };
    const rates = traffic.compute.feed(node.cn_id, overview.time_ms, counts);
    if (rates.now) rates.draw(rates.now.requests);
  }
  traffic.memory.retain(overview.memory_nodes.map((node) => node.name));
  traffic.compute.retain(overview.compute_nodes.map((node) => node.cn_id));
}

/** Rates of all memory nodes together; `null` while none is known. */
export function totalRates(overview) {
  const known = overview.memory_nodes.map((node) => traffic.memory.of(node.name)?.now).filter(Boolean);
  const sum = (name) => known.reduce((total, now) => total + now[name], 0);
  return known.length ? { rx_bytes: sum("rx_bytes"), tx_bytes: sum("tx_bytes"), requests: sum("requests") } : null;
}

const matches = (words, filter) => words.some((word) => word?.toLowerCase().includes(filter));

/** Those that need attention first, then by name. */
function ordered(nodes, isWell, name) {
  const byName = (a, b) => name(a).localeCompare(name(b), "en", { numeric: true });
  return nodes.toSorted((a, b) => Number(isWell(a)) - Number(isWell(b)) || byName(a, b));
}

function showMore(kind, button, found, noun, again) {
  button.hidden = found <= shown[kind];
  text(button, `Show more of ${some(found, noun)}`);
  button.onclick = () => {
    shown[kind] += CARDS;
    again();
  };
}

/** How a node comes to this manager: by joining it, or without rights where it asks for none. */
const comes = (program, options, insecure) => location.protocol === "https:"
  ? `${program} join ${location.origin} --token TOKEN ${options}`
  : `${insecure} --manager ${location.origin}`;

/**
 * Shows memory nodes that fit `filter`. `actions`: `open(kind, id)`, `narrow(field, id, label)`,
 * `again()`, `overview()`, `who(cnId)`.
 */
export function showMemoryNodes(overview, filter, actions) {
  const all = overview.memory_nodes;
  const found = all.filter((node) => matches([node.name], filter));
  const reachable = all.filter((node) => node.health === "reachable").length;
  text(byId("memory-nodes-count"), all.length ? `${reachable} of ${all.length} reachable` : "");
  const empty = byId("no-memory-nodes");
  empty.hidden = found.length > 0;
  const hint = `None yet. One comes with: ${comes("mn-server", "-i INTERFACE --pool-size 16G", "mn-server -i INTERFACE --pool-size 16G --node-key FILE")}`;
  text(empty, all.length ? "No memory node fits the search." : hint);
  const first = ordered(found, (node) => node.health === "reachable", (node) => node.name).slice(0, shown.memory);
  keyed(byId("memory-nodes"), first, (node) => node.name, (node) => memoryNode(node, actions));
  showMore("memory", byId("more-memory-nodes"), found.length, "memory node", actions.again);
}

function memoryNode({ name }, actions) {
  const standing = h("span", { class: "badges" });
  const bar = h("div", { class: "bar", role: "img" });
  const use = h("p", { class: "use phrases" });
  const rate = h("p", { class: "rate phrases" });
  const regions = h("button", { class: "link", onclick: () => actions.narrow("memory_node", name, `on ${name}`) });
  const rest = h("span", { class: "phrases" });
  const [curve, draw] = sparkline();
  const title = h("button", { class: "link title", onclick: () => actions.open("memory_node", name) }, name);
  const card = h("li", { class: "card" },
    h("div", { class: "card-top" }, h("h3", {}, title), standing),
    bar, use,
    h("div", { class: "flow" }, rate, curve),
    h("p", { class: "foot phrases" }, regions, rest));
  const update = (node) => {
    const overview = actions.overview();
    card.classList.toggle("unwell", node.health !== "reachable");
    const badges = [[HEALTH[node.health], node.health]];
    if (node.kind === "sld") badges.push(["plain", "whole (SLD)"]);
    if (node.traffic?.congested) badges.push(["warn", "congested"]);
    if (node.pending_commands) badges.push(["plain", `${node.pending_commands} pending`]);
    keyed(standing, badges, ([kind, label]) => `${kind} ${label}`, ([kind, label]) => [badge(kind, label), () => {}]);
    const used = node.pool_bytes - node.free_bytes - node.draining_bytes;
    const owners = node.owners.toSorted((a, b) => b.bytes - a.bytes);
    const told = owners.map((share) => `${actions.who(share.compute_node)} ${bytes(share.bytes)}`);
    const label = `${bytes(used)} of ${bytes(node.pool_bytes)} in use${told.length ? `: ${told.join(", ")}` : ""}`;
    bar.title = label;
    const parts = owners.map((share) => [`owner c${colourOf(share.compute_node)} of-${share.compute_node}`, share.bytes]);
    fillBar(bar, label, node.pool_bytes, [...parts, ["reserved", node.reserved_bytes]]);
    const extra = [
      node.reserved_bytes ? `${bytes(node.reserved_bytes)} reserved` : "",
      node.draining_bytes ? `${bytes(node.draining_bytes)} draining` : "",
    ].filter(Boolean);
    phrases(use, [`${bytes(used)} of ${bytes(node.pool_bytes)} in use, ${percent(used, node.pool_bytes)}`, ...extra]);
    const rates = traffic.memory.of(node.name);
    phrases(rate, flow(node, rates?.now));
    draw(rates?.curve ?? []);
    text(regions, some(node.regions, "region"));
    const age = node.reported_ms === null ? null : overview.time_ms - node.reported_ms;
    const sessions = node.traffic ? some(node.traffic.sessions, "session") : "";
    const silent = node.health !== "reachable" && age !== null ? `last report ${span(age)} ago` : "";
    phrases(rest, [sessions, silent].filter(Boolean));
  };
  return [card, update];
}

function flow(node, now) {
  if (node.health !== "reachable") return ["Traffic unknown: it does not report"];
  if (!node.traffic) return ["It reports no traffic"];
  if (!now) return ["Measuring…"];
  return [`in ${bytes(now.rx_bytes)}/s`, `out ${bytes(now.tx_bytes)}/s`, `${short(now.requests)} requests/s`];
}

/** Shows compute nodes that fit `filter`; `actions` as for memory nodes. */
export function showComputeNodes(overview, filter, actions) {
  const all = overview.compute_nodes;
  const found = all.filter((node) => matches([node.name, node.cn_id], filter));
  const reachable = all.filter((node) => node.health === "reachable").length;
  text(byId("compute-nodes-count"), all.length ? `${reachable} of ${all.length} reachable` : "");
  const empty = byId("no-compute-nodes");
  empty.hidden = found.length > 0;
  const hint = `None yet. One comes with: ${comes("cn-agent", "-i INTERFACE", "cn-agent run -i INTERFACE --node-key FILE")}`;
  text(empty, all.length ? "No compute node fits the search." : hint);
  const isWell = (node) => node.health !== "unreachable" && !node.held;
  const first = ordered(found, isWell, nameOf).slice(0, shown.compute);
  keyed(byId("compute-nodes"), first, (node) => node.cn_id, (node) => computeNode(node, actions));
  showMore("compute", byId("more-compute-nodes"), found.length, "compute node", actions.again);
}

function computeNode({ cn_id }, actions) {
  const standing = h("span", { class: "badges" });
  const use = h("p", { class: "use" });
  const rate = h("p", { class: "rate" });
  const bar = h("div", { class: "bar", role: "img" });
  const title = h("button", { class: "link title", onclick: () => actions.open("compute_node", cn_id) });
  const regions = h("button", { class: "link" });
  const [curve, draw] = sparkline();
  const card = h("li", { class: "card" },
    h("div", { class: "card-top" }, h("i", { class: `key owner c${colourOf(cn_id)}` }), h("h3", {}, title), standing),
    use, bar,
    h("div", { class: "flow" }, rate, curve),
    h("p", { class: "foot phrases" }, regions, h("span", {}, cn_id)));
  let named = cn_id;
  regions.addEventListener("click", () => actions.narrow("owner", cn_id, `of ${named}`));
  const update = (node) => {
    named = nameOf(node);
    text(title, named);
    card.classList.toggle("unwell", node.health === "unreachable");
    const badges = [[HEALTH[node.health], node.health === "unregistered" ? "never heard of" : node.health]];
    if (node.held) badges.push(["warn", "suspended"]);
    keyed(standing, badges, ([, label]) => label, ([kind, label]) => [badge(kind, label), () => {}]);
    const quota = node.quota === null ? "" : ` of a quota of ${bytes(node.quota)}`;
    text(use, `${bytes(node.bytes)}${quota}`);
    bar.hidden = node.quota === null;
    if (node.quota !== null) fillBar(bar, `${percent(node.bytes, node.quota)} of its quota`, node.quota, [[`owner c${colourOf(cn_id)}`, node.bytes]]);
    const rates = traffic.compute.of(cn_id);
    const now = rates?.now;
    const idle = node.requests === null ? "No session" : "Measuring…";
    text(rate, now ? `${short(now.requests)} requests/s` : idle);
    draw(rates?.curve ?? []);
    text(regions, some(node.regions, "region"));
  };
  return [card, update];
}
