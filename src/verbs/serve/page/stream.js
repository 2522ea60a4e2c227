// The connection to the server: server-sent events, read by `fetch`. An EventSource hides the
// server's keep-alive comments and the status of refused requests.

/** The server sends at least a comment every two seconds. */
const SILENCE = 8_000;
/** How long a hidden page keeps its connection. Browsers allow six connections to a server. */
const HIDDEN = 60_000;
const DELAYS = [500, 1_000, 1_000, 2_000, 2_000, 5_000];

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

/** Splits a stream of text into messages of the format of server-sent events. */
export class Messages {
  constructor(onMessage) {
    this.onMessage = onMessage;
    this.rest = [];
    this.event = "";
    this.data = [];
  }

  push(text) {
    const lines = text.split("\n");
    this.rest.push(lines[0]);
    if (lines.length === 1) return;
    lines[0] = this.rest.join("");
    this.rest = [lines.pop()];
    for (const line of lines) this.line(line.replace(/\r$/, ""));
  }

  line(line) {
    if (line === "") {
      if (this.data.length > 0) this.onMessage(this.event || "message", this.data.join("\n"));
      this.event = "";
      this.data = [];
      return;
    }
    const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
  }
}

/**
 * Follows the server until the page is left. `on` has the functions `state` and `event`, which get
 * the server's messages, `open`, `alive`, which is called for anything that the server sends, and
 * `lost`, which gets the error.
 */
export function follow(on) {
  let controller = null;
  let failures = 0;
  let wake = () => {};
  let hidden = null;

  async function once() {
    controller = new AbortController();
    let watchdog = null;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => controller.abort(), SILENCE);
    };
    try {
      alive();
      const response = await fetch("api/v1/events", {
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        signal: controller.signal,
      });
      if (!response.ok) throw await refusal(response);
      const messages = new Messages((event, data) => {
        failures = 0;
        if (event === "state") on.state(JSON.parse(data));
        else if (event === "event") on.event(JSON.parse(data));
      });
      on.open();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the server closed the connection");
        alive();
        on.alive();
        messages.push(value);
      }
    } finally {
      clearTimeout(watchdog);
      controller.abort();
      controller = null;
    }
  }

  async function run() {
    for (;;) {
      if (!document.hidden || hidden !== null) await once().catch((error) => on.lost(error));
      const delay = DELAYS[Math.min(failures, DELAYS.length - 1)];
      failures += 1;
      await new Promise((resolve) => {
        wake = resolve;
        if (!document.hidden) setTimeout(resolve, delay);
      });
    }
  }

  const retry = () => {
    failures = 0;
    wake();
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    hidden = null;
    if (!document.hidden) retry();
    else
      hidden = setTimeout(() => {
        hidden = null;
        controller?.abort();
      }, HIDDEN);
  });
  addEventListener("online", retry);
  addEventListener("pagehide", () => controller?.abort());
  addEventListener("pageshow", (event) => event.persisted && retry());
  run();
}
