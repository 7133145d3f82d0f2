// Logging in and out. The token goes to the manager once, over TLS; what stays in the browser is a cookie that no script
// sees, and that no other page can send.

import { byId, text } from "./dom.js";

const PATIENCE_MS = 5000;

async function send(path, token) {
  const answer = await fetch(`/v1/${path}`, {
    method: "POST",
    cache: "no-store",
    redirect: "manual",
    headers: { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) },
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error ?? `the manager answered with status ${answer.status}`);
  return body;
}

/** Asks for a token; `hidden` says that none is needed. */
export function show(hidden) {
  const form = byId("log-in");
  if (form.hidden === hidden) return;
  form.hidden = hidden;
  if (!hidden) byId("token").focus();
}

/** Shows who is logged in, if somebody is. */
export async function showWho() {
  const answer = await fetch("/v1/whoami", { cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(PATIENCE_MS) });
  const body = answer.ok ? await answer.json() : null;
  const inBrowser = body?.who.endsWith(" in a browser") ?? false;
  byId("log-out").hidden = !inBrowser;
  text(byId("who"), inBrowser ? `${body.who.replace(" in a browser", "")} (${body.role})` : "");
}

/** Calls `changed` when somebody has logged in or out. */
export function listen(changed) {
  byId("log-in").addEventListener("submit", async (event) => {
    event.preventDefault();
    const field = byId("token");
    const token = field.value.trim();
    field.value = "";
    try {
      await send("log-in", token);
      text(byId("log-in-failed"), "");
    } catch (error) {
      text(byId("log-in-failed"), `Not logged in: ${error.message}`);
      return;
    }
    changed();
  });
  byId("log-out").addEventListener("click", async () => {
    await send("log-out").catch(() => null);
    location.reload();
  });
}
