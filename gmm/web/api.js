// The manager's REST interface, read only. What fails is told apart by what there is to do about it.

/** How long an answer may take, in milliseconds. */
const PATIENCE_MS = 5000;

/** Nobody answers. */
export class Unreachable extends Error {}

/** The manager, or something before it, answered that it will not or cannot. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? `it answered with status ${status}`);
    this.status = status;
    this.hint = body?.hint ?? "";
  }
}

/** Another manager leads: its page is where this page's address leads to. */
export class Moved extends Error {}

/** Asks for a path below /v1; parameters without a value are left out. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(given).toString();
  let answer;
  try {
    answer = await fetch(`/v1/${path}${query && `?${query}`}`, {
      cache: "no-store",
      redirect: "manual",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : "no connection");
  }
  if (answer.type === "opaqueredirect") throw new Moved();
  let body;
  try {
    body = await answer.json();
  } catch {
    if (answer.ok) throw new Unreachable("the answer broke off");
  }
  if (!answer.ok) throw new Refused(answer.status, body);
  return body;
}
