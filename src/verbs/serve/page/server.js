// Requests to the server. The page asks for the state again and again; the server answers with 304
// if the state is the one that the page has.

/** The pause between two requests for the state, in milliseconds. */
const EVERY = 1_000;
/** The same after failures, one after the other. */
const DELAYS = [500, 1_000, 1_000, 2_000, 2_000, 5_000];
/** How long an answer may take. The server itself gives up after five seconds. */
export const PATIENCE = 8_000;

/** A refusal of the server, with its status and its reason. */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason || `the server answered with status ${status}`);
    this.status = status;
  }
}

async function refusal(response) {
  const said = await response.json().catch(() => null);
  return new Refused(response.status, said?.error);
}

/** Fetches JSON from the server. */
export async function get(path, parameters = {}, signal = undefined) {
  const known = Object.entries(parameters).filter(([, value]) => value != null);
  const query = new URLSearchParams(known).toString();
  const response = await fetch(query ? `${path}?${query}` : path, {
    headers: { Accept: "application/json" },
    cache: "no-store",
    signal,
  });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/**
 * Follows the state of the server. `on` has the functions `state`, which gets a new state, `alive`
 * for an answer without one, and `lost`, which gets the error. A page in the background asks for
 * nothing.
 */
export async function follow(on) {
  let [failures, tag, wake] = [0, null, () => {}];

  async function once() {
    const response = await fetch("api/v1/state", {
      headers: tag === null ? {} : { "If-None-Match": tag },
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (response.status === 304) return on.alive();
    if (!response.ok) throw await refusal(response);
    const said = JSON.parse(await response.text());
    tag = response.headers.get("ETag");
    return on.state(said);
  }

  const retry = () => {
    failures = 0;
    wake();
  };
  document.addEventListener("visibilitychange", retry);
  addEventListener("online", retry);
  addEventListener("pageshow", retry);
  for (;;) {
    let delay = EVERY;
    try {
      if (!document.hidden) await once();
      failures = 0;
    } catch (error) {
      on.lost(error);
      delay = DELAYS[Math.min(failures, DELAYS.length - 1)];
      failures += 1;
    }
    await new Promise((resolve) => {
      wake = resolve;
      if (!document.hidden) setTimeout(resolve, delay);
    });
  }
}
