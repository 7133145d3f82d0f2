// The fabric view. Once a second the manager is asked how things stand; events, regions and the open dialog are asked for
// when something has happened. All the page shows is of one answer, and says so when there is none any more.
//
//   overview --> tiles, nodes          every round
//   newest event is another one --> events, regions, dialog
//   search, filters --> regions        at once

import { Moved, Refused, ask } from "./api.js";
import * as details from "./details.js";
import { byId, h, keyed, text } from "./dom.js";
import * as events from "./events.js";
import { bytes, count, moment, percent, short, some, span, time } from "./format.js";
import * as login from "./login.js";
import * as nodes from "./nodes.js";
import * as problems from "./problems.js";
import * as regions from "./regions.js";
import { sparkline } from "./traffic.js";

/** Between two rounds, in milliseconds; longer where an answer takes long. */
const ROUND_MS = 1000;
/** Of the time, what asking may take at most: one part in this many. */
const SHARE = 4;
/** Pause after the last key before a search is carried out. */
const TYPING_MS = 200;

const state = {
  /** The last answer, and when it came by this machine's clock. */
  overview: null,
  answeredMs: 0,
  /** What compute nodes are called, by CN id. */
  names: new Map(),
  /** The newest event that the log and the regions on show contain. */
  seenEvent: null,
  /** Since when rounds fail: the time of the last answer, or of the page's opening. */
  failingSince: null,
  filter: "",
};

const actions = {
  overview: () => state.overview,
  who: (cnId) => state.names.get(cnId) ?? cnId,
  now: () => state.overview.time_ms,
  open: (kind, id) => attempt(() => details.open(kind, id, state.overview)),
  again: () => showNodes(),
  narrow: (field, value, label) => narrow(field, value, label),
  state: (name) => setState(name),
};

const [curve, drawCurve] = sparkline();
byId("traffic-curve").append(curve);
const totals = [];

/** One round: ask, show, and say whether it worked. */
async function round() {
  const overview = await ask("overview");
  // Another term is another manager: its log may be shorter than what was seen of the one before.
  const anew = state.seenEvent === null || overview.newest_event < state.seenEvent;
  const happened = anew || overview.newest_event !== state.seenEvent;
  state.overview = overview;
  state.names = new Map(overview.compute_nodes.map((node) => [node.cn_id, nodes.nameOf(node)]));
  nodes.feed(overview);
  if (happened) {
    const after = anew ? Math.max(0, overview.newest_event - events.EVENTS_MAX) : state.seenEvent;
    const [page] = await Promise.all([
      ask("events", { after }), regions.fetchPage(), problems.fetchRegions(overview, true), details.refresh(overview, true),
    ]);
    events.take(page, anew);
    events.show(actions.who);
    state.seenEvent = page.through;
  } else {
    await Promise.all([
      regions.isMoving() ? regions.fetchPage() : null, problems.fetchRegions(overview, false), details.refresh(overview, false),
    ]);
  }
  state.answeredMs = Date.now();
  show();
}

function show() {
  byId("fabric").hidden = false;
  showTiles(state.overview);
  showNodes();
  problems.show(state.overview, actions);
  regions.show(actions);
  const { version, term, leader } = state.overview;
  text(byId("about"), `Manager ${leader}, version ${version}, term ${term}.`);
}

function showNodes() {
  nodes.showMemoryNodes(state.overview, state.filter, actions);
  nodes.showComputeNodes(state.overview, state.filter, actions);
}

const sum = (items, value) => items.reduce((total, item) => total + value(item), 0);

function showTiles(overview) {
  const pools = overview.memory_nodes;
  const whole = sum(pools, (node) => node.pool_bytes);
  const free = sum(pools, (node) => node.free_bytes);
  const reserved = sum(pools, (node) => node.reserved_bytes);
  const draining = sum(pools, (node) => node.draining_bytes);
  const used = whole - free - draining;
  text(byId("memory-used"), whole ? bytes(used) : "No memory yet");
  text(byId("memory-of"), whole ? `of ${bytes(whole)} in use, ${percent(used, whole)}` : "");
  const label = `${bytes(used)} in use, ${bytes(reserved)} reserved, ${bytes(draining)} draining, ${bytes(free - reserved)} free`;
  nodes.fillBar(byId("memory-bar"), label, whole, [["used", used], ["reserved", reserved], ["draining", draining]]);
  text(byId("legend-used"), `${bytes(used)} in use`);
  text(byId("legend-reserved"), `${bytes(reserved)} reserved`);
  text(byId("legend-draining"), `${bytes(draining)} draining`);
  text(byId("legend-free"), `${bytes(free - reserved)} free`);

  showHealth(overview);

  text(byId("region-count"), count(sum(overview.regions, (total) => total.regions)));
  keyed(byId("region-states"), overview.regions, (total) => total.state, (total) => {
    const narrowed = () => setState(total.state);
    const button = h("button", { class: `badge ${regions.STATES[total.state] ?? "plain"}`, onclick: narrowed });
    return [h("li", {}, button), (now) => text(button, `${count(now.regions)} ${now.state}`)];
  });

  const rates = nodes.totalRates(overview);
  const reported = pools.some((node) => node.traffic);
  text(byId("traffic-figure"), rates ? `${bytes(rates.rx_bytes + rates.tx_bytes)}/s` : reported ? "Measuring…" : "Unknown");
  const told = rates
    ? `in ${bytes(rates.rx_bytes)}/s, out ${bytes(rates.tx_bytes)}/s, ${short(rates.requests)} requests/s at memory nodes`
    : reported ? "From the second report on." : "No memory node reports any.";
  text(byId("traffic-rates"), told);
  if (rates) {
    totals.push(rates.rx_bytes + rates.tx_bytes);
    totals.splice(0, totals.length - 60);
    drawCurve(totals);
  }
}

function showHealth(overview) {
  const inState = (name) => overview.regions.find((total) => total.state === name)?.regions ?? 0;
  const silent = (list) => list.filter((node) => node.health === "unreachable").length;
  const problems = [
    [silent(overview.memory_nodes), "memory node", "unreachable", "bad"],
    [silent(overview.compute_nodes), "compute node", "unreachable", "bad"],
    [inState("lost"), "region", "lost", "bad"],
    [inState("degraded"), "region", "degraded", "warn"],
    [inState("exposed"), "region", "exposed", "warn"],
    [overview.memory_nodes.filter((node) => node.traffic?.congested).length, "memory node", "congested", "warn"],
    [overview.compute_nodes.filter((node) => node.held).length, "compute node", "suspended", "warn"],
  ].filter(([number]) => number > 0);
  const empty = overview.memory_nodes.length + overview.compute_nodes.length === 0;
  const figure = byId("health");
  text(figure, problems.length ? some(problems.length, "problem") : empty ? "Empty" : "All is well");
  figure.className = `figure ${problems.some(([, , , kind]) => kind === "bad") ? "bad" : problems.length ? "warn" : empty ? "" : "good"}`;
  const facts = problems.length ? problems : [
    [overview.memory_nodes.length, "memory node", "", "plain"],
    [overview.compute_nodes.length, "compute node", "", "plain"],
  ];
  keyed(byId("problems"), facts, ([, noun, what]) => `${noun} ${what}`, () => {
    const line = h("li");
    return [line, ([number, noun, what, kind]) => {
      line.className = kind;
      text(line, `${some(number, noun)} ${what}`.trim());
    }];
  });
  document.title = problems.length ? `(${problems.length}) CXLoE fabric` : "CXLoE fabric";
}

/** The line at the top, and the banner when there is no answer. */
function showStanding(error) {
  const standing = byId("standing");
  const banner = byId("banner");
  const failing = state.failingSince !== null;
  standing.className = `standing ${failing ? "bad" : "good"}`;
  document.body.classList.toggle("stale", failing && state.overview !== null);
  banner.hidden = !failing;
  if (!failing) {
    text(byId("standing-text"), `Live, ${time(state.answeredMs)}`);
    return;
  }
  const since = `since ${time(state.failingSince)} (${span(Date.now() - state.failingSince)})`;
  text(byId("standing-text"), `No answer ${since}`);
  const told = error instanceof Refused;
  text(byId("banner-title"), told ? `The manager cannot tell how things stand: ${error.message}` : "The manager does not answer.");
  const shown = state.overview ? `What is shown is how things stood ${moment(state.answeredMs)}. ` : "";
  const reason = told ? (error.hint ? `It says: ${error.hint}. ` : "") : `Asked ${location.host}: ${error.message}. `;
  const comfort = "Reads and writes of mapped regions go on without it. Trying again.";
  text(byId("banner-text"), `${reason}${shown}${comfort}`);
}

/** Does something that asks the manager; a failure is shown. Returns whether it worked. */
async function attempt(work) {
  try {
    await work();
    state.failingSince = null;
    login.show(true);
    showStanding();
    return true;
  } catch (error) {
    if (error instanceof Moved) {
      // The address leads to the one that leads now.
      location.reload();
      return false;
    }
    if (error instanceof Refused && error.status === 401) {
      byId("fabric").hidden = true;
      byId("banner").hidden = true;
      text(byId("standing-text"), "Not logged in");
      login.show(false);
      return false;
    }
    state.failingSince ??= state.answeredMs || Date.now();
    showStanding(error);
    // A mistake of this page, not of the manager, is for its developers too.
    if (error instanceof TypeError || error instanceof ReferenceError) console.error(error);
    return false;
  }
}

const fetchRegions = () => attempt(async () => {
  await regions.fetchPage();
  if (state.overview) regions.show(actions);
});

function setState(name) {
  byId("state").value = name;
  regions.want({ state: name });
  toRegions();
}

function narrow(field, value, label) {
  const chip = byId("narrowed");
  chip.hidden = !value;
  chip.textContent = `${label} ✕`;
  chip.setAttribute("aria-label", `Only regions ${label}: show all again`);
  regions.want({ owner: "", memory_node: "", [field]: value });
  if (value) toRegions();
  else fetchRegions();
}

async function toRegions() {
  await fetchRegions();
  byId("regions-part").scrollIntoView({ block: "start" });
  byId("regions-part").focus({ preventScroll: true });
}

let typing = 0;
byId("search").addEventListener("input", ({ target }) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    state.filter = target.value.trim().toLowerCase();
    regions.want({ text: state.filter });
    if (state.overview) showNodes();
    fetchRegions();
  }, TYPING_MS);
});
byId("state").addEventListener("change", ({ target }) => {
  regions.want({ state: target.value });
  fetchRegions();
});
byId("sort").addEventListener("change", ({ target }) => {
  regions.want({ sort: target.value });
  fetchRegions();
});
byId("narrowed").addEventListener("click", () => narrow("owner", "", ""));
regions.listen(fetchRegions);
// A slash goes to the search, as in many pages that are searched.
document.addEventListener("keydown", (event) => {
  const inField = event.target instanceof Element && event.target.matches("input, select, textarea");
  if (event.key === "/" && !inField && !byId("details").open) {
    event.preventDefault();
    byId("search").focus();
  }
});

let waiting = 0;
let going = false;
async function go() {
  if (going) return;
  going = true;
  clearTimeout(waiting);
  const begun = performance.now();
  const worked = await attempt(round);
  going = false;
  const took = worked ? performance.now() - begun : 0;
  // A page that nobody looks at asks nothing.
  if (!document.hidden) waiting = setTimeout(go, Math.max(ROUND_MS, Math.min(took * SHARE, 30_000)));
}
function entered() {
  login.showWho().catch(() => null);
  go();
}
login.listen(entered);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) go();
});
entered();
