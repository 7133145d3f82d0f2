// The regions: searched, narrowed and sorted by the manager, because there may be a hundred thousand; a page holds as many
// rows as were asked for.

import { Refused, ask } from "./api.js";
import { badge, byId, h, keyed, text } from "./dom.js";
import { bytes, moment, some, span } from "./format.js";
import { colourOf } from "./nodes.js";

/** Rows that come at a time: fewer where each takes more room. */
const STEP = matchMedia("(max-width: 700px)").matches ? 25 : 100;
/** The most a manager gives in one answer. */
const ROWS_MAX = 1000;
/** Memory nodes named in a row. */
const NODES_MAX = 4;

/** What is wanted, as the manager's query has it. */
const wanted = { text: "", state: "", sort: "name", owner: "", memory_node: "", limit: STEP };
let page = { matching: 0, bytes: 0, regions: [] };
let asked = 0;

export const STATES = {
  active: "good",
  exposed: "warn",
  degraded: "warn",
  creating: "plain",
  lost: "bad",
  releasing: "plain",
  disabled: "plain",
  draining: "plain",
};

/** Whether nothing but everything is wanted. */
const isNarrowed = () => Boolean(wanted.text || wanted.state || wanted.owner || wanted.memory_node);

/** Changes what is wanted; the rows begin anew. */
export function want(change) {
  Object.assign(wanted, change, { limit: STEP });
}

/** Asks for the regions that are wanted. What comes after a later question is dropped. */
export async function fetchPage() {
  asked += 1;
  const number = asked;
  let found;
  try {
    found = await ask("overview/regions", wanted);
  } catch (error) {
    // A name in the search that cannot be one: nothing fits it.
    if (!(error instanceof Refused && error.status === 400)) throw error;
    found = { matching: 0, bytes: 0, regions: [] };
  }
  if (number === asked) page = found;
}

/** Whether a row shows something that goes on without an event. */
export const isMoving = () => page.regions.some((region) => region.state === "draining");

/** Shows the rows. `actions`: `open(kind, id)`, `now()`. */
export function show(actions) {
  const { matching, regions } = page;
  const narrowed = isNarrowed();
  const part = regions.length < matching ? `, the first ${regions.length} shown` : "";
  text(byId("regions-count"), matching ? `${some(matching, "region")}, ${bytes(page.bytes)}${part}` : "");
  const empty = byId("no-regions");
  empty.hidden = matching > 0;
  text(empty, narrowed ? "No region fits." : "None yet. One comes with: gmm create-region -s 4G --owner NODE NAME");
  byId("regions-table").hidden = matching === 0;
  keyed(byId("regions"), regions, (region) => `${region.name} ${region.created_ms}`, (region) => row(region, actions));
  const more = byId("more-regions");
  more.hidden = regions.length >= matching;
  more.disabled = wanted.limit >= ROWS_MAX;
  text(more, more.disabled ? `These are ${regions.length} of ${matching}: narrow the search to see others` : "Show more");
}

/** Lets the button ask for more rows. */
export function listen(again) {
  byId("more-regions").addEventListener("click", () => {
    wanted.limit = Math.min(wanted.limit + STEP, ROWS_MAX);
    again();
  });
}

function cell(label, ...children) {
  return h("td", { role: "cell", "data-label": label }, ...children);
}

function row({ name, owner }, actions) {
  const standing = badge("plain", "");
  const state = cell("State", standing);
  const whose = h("button", { class: "link", onclick: () => actions.open("compute_node", owner) });
  const size = cell("Size");
  size.className = "number";
  const interleave = cell("Interleave");
  const on = cell("On");
  const age = cell("Age");
  age.className = "number";
  const reason = h("span", { class: "reason" });
  const labels = h("span", { class: "labels" });
  const line = h("tr", { role: "row" },
    h("th", { role: "rowheader", scope: "row" },
      h("button", { class: "link title", onclick: () => actions.open("region", name) }, name), labels, reason),
    state,
    cell("Owner", h("i", { class: `key owner c${colourOf(owner)}` }), whose),
    size, interleave, on, age);
  const update = (region) => {
    const percent = region.zeroed_percent === undefined ? "" : ` ${region.zeroed_percent} %`;
    standing.className = `badge ${STATES[region.state] ?? "plain"}`;
    text(standing, `${region.state}${percent}`);
    text(reason, region.failure ?? "");
    text(labels, Object.entries(region.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", "));
    text(whose, region.owner_name ?? region.owner);
    text(size, region.growing ? `${bytes(region.size)} + ${bytes(region.growing)}` : bytes(region.size));
    const decoders = region.decoders > 1 ? `, ${region.decoders} decoders` : "";
    text(interleave, region.ways > 1 ? `${region.ways} × ${bytes(region.granularity)}${decoders}` : `none${decoders}`);
    const more = region.memory_nodes.length - NODES_MAX;
    text(on, region.memory_nodes.slice(0, NODES_MAX).join(", ") + (more > 0 ? ` and ${more} more` : ""));
    on.title = region.memory_nodes.join(", ");
    text(age, span(actions.now() - region.created_ms));
    age.title = moment(region.created_ms);
  };
  return [line, update];
}
