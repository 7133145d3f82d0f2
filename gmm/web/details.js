// One region, memory node or compute node in full, in a dialog. While the dialog is open, what it
// shows is asked for anew when something has happened, and counters every few seconds.

import { Refused, ask } from "./api.js";
import { badge, byId, h } from "./dom.js";
import { address, bytes, count, moment, percent, words } from "./format.js";
import { colourOf, nameOf } from "./nodes.js";
import { STATES } from "./regions.js";

/** Legs, devices and sessions listed at most. */
const ROWS_MAX = 64;
/** Pieces drawn to show how an interleave set goes round. */
const PIECES = 16;
/** How often counters are asked for while nothing else happens, in milliseconds. */
const COUNTERS_MS = 5000;
/** Nodes of a kind that one switch of the FM API shows. */
const SWITCH_NODES = 127;

let subject = null;
let written = "";
let askedMs = 0;

const dialog = byId("details");

/** Opens the dialog on a thing: its kind and its identity. */
export function open(kind, id, overview) {
  subject = { kind, id };
  written = "";
  byId("details-title").textContent = id;
  byId("details-body").replaceChildren(h("p", { class: "quiet" }, "Asking the manager…"));
  if (!dialog.open) dialog.showModal();
  byId("details-title").focus();
  return refresh(overview, true);
}

dialog.addEventListener("close", () => {
  // Told late: it may be open again, on something else.
  if (!dialog.open) subject = null;
});
// A click beside the dialog is one on the dialog itself.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});

/** Asks for what the dialog shows and shows it, if something has `happened` or it is time; nothing while it is closed. */
export async function refresh(overview, happened) {
  if (!subject || (!happened && performance.now() < askedMs + COUNTERS_MS)) return;
  askedMs = performance.now();
  const current = subject;
  let content;
  try {
    content = await SHOWN[current.kind](current.id, overview);
  } catch (error) {
    if (!(error instanceof Refused && error.status === 404)) throw error;
    content = { title: current.id, parts: [h("p", {}, "It is gone.")] };
  }
  if (current !== subject) return;
  // What has not changed stays as it is; what has, keeps the focus.
  const draft = h("div", {}, ...content.parts);
  const now = `${content.title} ${draft.innerHTML}`;
  if (now === written) return;
  written = now;
  byId("details-title").textContent = content.title;
  const body = byId("details-body");
  const focus = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  body.replaceChildren(...content.parts);
  if (focus !== null) [...body.querySelectorAll("[aria-label]")].find((part) => part.ariaLabel === focus)?.focus();
}

const facts = (pairs) =>
  h("dl", {}, ...pairs.filter(([, value]) => value !== null).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

function table(caption, columns, rows) {
  if (rows.length === 0) return null;
  const left = rows.length > ROWS_MAX ? `, the first ${ROWS_MAX} of ${count(rows.length)}` : "";
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption + left),
      h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.slice(0, ROWS_MAX).map((cells) => h("tr", {}, ...cells.map((value) => h("td", {}, value)))))));
}

const whoIs = (overview, cnId) => {
  const node = overview.compute_nodes.find((known) => known.cn_id === cnId);
  return node ? nameOf(node) : cnId;
};

async function region(name, overview) {
  const found = await ask(`regions/${encodeURIComponent(name)}`);
  const owner = whoIs(overview, found.owner);
  const release = found.release ? `${words(found.release.option)}, ${found.release.done ? "done" : "its owner has yet to release it"}` : null;
  const parts = [
    facts([
      ["State", badge(STATES[found.state] ?? "plain", found.state)],
      ["Failure", found.failure ?? null],
      ["Content of", found.origin ? `${found.origin.region}, when it was made` : null],
      ["Owner", owner === found.owner ? owner : `${owner} (${found.owner})`],
      ["Size", `${bytes(found.size)} (${count(found.size)} bytes)`],
      ["Release", release],
      ["Zeroed", found.zeroed_percent === undefined ? null : `${found.zeroed_percent} %`],
      ["Copied by memory nodes", found.copying ? `${bytes(found.copying.done)} of ${bytes(found.copying.bytes)}` : null],
      ["Beyond its end", words(found.unmapped)],
      ["Created", moment(found.created_ms)],
      ["HPA range", `chosen by its owner when it attaches the region: cn-agent list on ${owner} shows it. Offsets below count from there.`],
    ]),
    ...found.decoders.map((decoder, index) => decoderPart(decoder, index, found)),
  ];
  return { title: `Region ${name}`, parts };
}

function decoderPart(decoder, index, found) {
  const legs = found.legs.filter((leg) => leg.decoder === index).sort((a, b) => a.position - b.position);
  const last = decoder.offset + decoder.size - 1;
  const how = decoder.ways > 1 ? `${decoder.ways} ways, pieces of ${bytes(decoder.granularity)}` : "one way";
  const pieces = Array.from({ length: Math.min(PIECES, Math.max(decoder.ways, 8)) }, (_, i) => i % decoder.ways);
  const strip = h("div", { class: "strip", "aria-hidden": "true" },
    ...pieces.map((position) => h("span", { class: `c${position % 10}` }, legs[position]?.memory_node ?? "")));
  return h("section", { class: "decoder" },
    h("h3", {}, `HDM decoder ${index} `, badge(decoder.committed ? "good" : "plain", decoder.committed ? "committed" : "not committed")),
    h("p", {}, `Offsets ${address(decoder.offset)} to ${address(last)}, ${bytes(decoder.size)}, ${how}.`),
    decoder.ways > 1 ? strip : null,
    table(`Legs of decoder ${index}`, ["Position", "Memory node", "State", "CMem from", "Bytes", "Extents"],
      legs.map((leg) => [leg.position, leg.memory_node, leg.state, address(leg.cmem_base), bytes(leg.bytes),
        `${count(leg.bytes / leg.extent_bytes)} of ${bytes(leg.extent_bytes)}`])));
}

const deviceColumns = ["LD", "Bound to", "vPPB", "Capacity", "Used", "Regions"];

function deviceRow(device, first, overview) {
  const binding = device.binding;
  const unbinding = binding?.unbinding ? `, unbinding (${words(binding.unbinding.option)}) ${device.unbound_percent ?? 0} %` : "";
  return [
    first,
    binding ? whoIs(overview, binding.compute_node) + unbinding : "nobody",
    binding?.vppb ?? "none",
    device.reserved ? `${bytes(device.capacity)}, ${bytes(device.reserved)} reserved` : bytes(device.capacity),
    bytes(device.used_bytes),
    device.regions.slice(0, 3).join(", ") + (device.regions.length > 3 ? ` and ${device.regions.length - 3} more` : ""),
  ];
}

function sessionTable(sessions, column, nameOfEnd) {
  return table("Sessions", [column, "Worker", "Executed", "Faults", "Repeats", "Early", "Waiting"],
    sessions.map((session) => {
      const counter = (name) => count(session.counters?.[name] ?? 0);
      return [nameOfEnd(session), session.worker, counter("executed"), counter("faults"), counter("duplicates"),
        counter("early"), count(session.waiting ?? 0)];
    }));
}

async function memoryNode(name, overview) {
  const node = overview.memory_nodes.find((known) => known.name === name);
  if (!node) return { title: name, parts: [h("p", {}, "It is gone.")] };
  const [devices, sessions] = await Promise.all([ask("logical-devices"), ask("sessions")]);
  const used = node.pool_bytes - node.free_bytes - node.draining_bytes;
  const shares = node.owners.map((share) => [
    h("span", {}, h("i", { class: `key owner c${colourOf(share.compute_node)}` }), whoIs(overview, share.compute_node)),
    bytes(share.bytes),
    percent(share.bytes, node.pool_bytes),
  ]);
  const own = devices.filter((device) => device.memory_node === name);
  const of = node.traffic;
  const parts = [
    facts([
      ["Health", node.health],
      ...(node.link_down ? [["No link", node.link_down]] : []),
      ["Last report", node.reported_ms === null ? "none since this manager leads" : moment(node.reported_ms)],
      ["Ports", node.macs.join(", ")],
      ["MTU", `${count(node.mtu)} bytes`],
      ["Kind", node.kind === "sld" ? "SLD: given away whole" : "MLD: given away in slices"],
      ["Physical port", `${node.index % SWITCH_NODES} of switch ${Math.floor(node.index / SWITCH_NODES)}, in the FM API`],
      ["Pool", `${bytes(node.pool_bytes)} in extents of ${bytes(node.extent_bytes)}`],
      ["In use", `${bytes(used)}, ${percent(used, node.pool_bytes)}`],
      ["Set aside and free", bytes(node.reserved_bytes)],
      ["Draining", bytes(node.draining_bytes)],
      ["Requests", of ? `${count(of.requests)} executed, ${count(of.faults)} faults, ${count(of.repeats)} repeats` : "not reported"],
      ["Frames dropped", of ? count(of.dropped) : null],
      ["Congested", of ? (of.congested ? "yes" : "no") : null],
    ]),
    table("Who has how much", ["Compute node", "Bytes", "Of the pool"], shares),
    table("Logical devices", deviceColumns, own.map((device) => deviceRow(device, device.id, overview))),
    sessionTable(sessions.filter((session) => session.memory_node === name), "Compute node",
      (session) => session.compute_node_name ?? session.compute_node),
  ];
  return { title: `Memory node ${name}`, parts: parts.filter(Boolean) };
}

async function computeNode(cnId, overview) {
  const node = overview.compute_nodes.find((known) => known.cn_id === cnId);
  if (!node) return { title: cnId, parts: [h("p", {}, "It is gone.")] };
  const [devices, sessions] = await Promise.all([ask("logical-devices"), ask("sessions")]);
  const own = devices.filter((device) => device.binding?.compute_node === cnId);
  const shares = overview.memory_nodes.flatMap((memory) =>
    memory.owners.filter((share) => share.compute_node === cnId).map((share) => [memory.name, bytes(share.bytes)]));
  const parts = [
    facts([
      ["CN id", cnId],
      ["Health", words(node.health)],
      ["Held in reset", node.held ? `yes: gmm release ${nameOf(node)} lets it attach its regions` : "no"],
      ["Regions", `${count(node.regions)}, ${bytes(node.bytes)}`],
      ["Quota", node.quota === null ? "none" : bytes(node.quota)],
      ["Requests executed", node.requests === null ? "no session" : count(node.requests)],
    ]),
    table("Where its memory lies", ["Memory node", "Bytes"], shares),
    table("Logical devices bound to it", ["LD", ...deviceColumns.slice(1)],
      own.map((device) => deviceRow(device, `${device.memory_node} LD ${device.id}`, overview))),
    sessionTable(sessions.filter((session) => session.compute_node === cnId), "Memory node", (session) => session.memory_node),
  ];
  return { title: `Compute node ${nameOf(node)}`, parts: parts.filter(Boolean) };
}

const SHOWN = { region, memory_node: memoryNode, compute_node: computeNode };
