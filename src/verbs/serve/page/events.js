// The events: refusals, waits, kills and changes, newest first.

import { byId, el, keyed, label, say } from "./dom.js";
import {
  UNKNOWN,
  count,
  dateTime,
  exact,
  foreign,
  gpuName,
  many,
  part,
  recent,
  size,
} from "./format.js";
import { PATIENCE, get } from "./server.js";

const KINDS = [
  "refusal", "asked", "given", "wait", "granted", "high", "oom", "kill", "reap",
  "suspend", "resume", "lost", "limits",
];
/** Events that are kept, and those that are shown at first. */
const [KEPT, SHOWN] = [4_096, 100];
/** How far back the page looks when it is opened. */
const SINCE = "24h";

/** Returns the time of the last event that an entry stands for. */
const last = (event) => event.until ?? event.time;

const key = (event) => `${event.time}\u0000${event.root}\u0000${event.group}\u0000${event.number}`;

/** Returns the number of events that these entries stand for: equal events can be one entry. */
const total = (events) => events.reduce((sum, event) => sum + (event.count ?? 1), 0);

/**
 * Makes the refusals of each process in a group one entry, at the place of the newest: `time` is
 * that of the first, and `until` that of the last. The events are sorted, the newest first.
 */
function folded(events) {
  const first = new Map();
  const found = [];
  for (const event of events) {
    const { root, group, pid, command, gpu } = event;
    const id = JSON.stringify([root, group, pid, command, gpu?.uuid]);
    const known = event.event === "refusal" && pid != null ? first.get(id) : null;
    if (known) {
      known.count = total([known, event]);
      known.until ??= known.time;
      known.time = event.time;
    } else {
      found.push({ ...event });
      if (event.event === "refusal") first.set(id, found.at(-1));
    }
  }
  return found;
}

export class Events {
  /** `onChange` is called when the known events have changed, unless the page is paused. */
  constructor({ onChange }) {
    this.onChange = onChange;
    this.byKey = new Map();
    this.next = 0;
    this.hidden = new Set();
    this.most = SHOWN;
    this.boxes = new Map();
    for (const kind of KINDS) this.box(kind);
    byId("older-events").addEventListener("click", () => {
      this.most += SHOWN;
      this.render();
    });
  }

  /** Makes the box that hides the events of a kind, unless there is one. */
  box(kind) {
    if (this.boxes.has(kind)) return;
    const input = el("input", { type: "checkbox", value: kind });
    input.checked = true;
    const number = el("span", { class: "chip-count" });
    byId("event-kinds").append(
      el("label", { class: `chip chip-${kind}` }, input, el("span", {}, foreign(kind)), number),
    );
    input.addEventListener("change", () => {
      if (input.checked) this.hidden.delete(kind);
      else this.hidden.add(kind);
      this.render();
    });
    this.boxes.set(kind, number);
  }

  /** Fetches the events of the last day, or those since the newest one that is known. */
  async load() {
    const begun = performance.now();
    if (begun < this.next) return;
    this.next = Infinity;
    const known = [...this.byKey.values()];
    const newest = known.map(last).reduce((one, other) => (other > one ? other : one), "");
    try {
      const late = AbortSignal.timeout(PATIENCE);
      const said = await get("api/v1/events", { since: newest || SINCE }, late);
      byId("events-error").hidden = true;
      const text = JSON.stringify(said.events);
      if (text === this.text) return;
      this.text = text;
      // The answer has all events since this second; equal ones may share an entry now.
      const older = known.filter((event) => last(event) < newest.slice(0, 19));
      this.byKey = new Map([...older, ...said.events].map((event) => [key(event), event]));
      this.changed();
    } catch (error) {
      byId("events-error").hidden = false;
      say(byId("events-error"), `The events could not be fetched: ${error.message}.`);
    } finally {
      // Where reading events takes long, most of the server's time is for others.
      this.next = 4 * (performance.now() - begun) + performance.now();
    }
  }

  changed() {
    const newestFirst = (one, other) =>
      one.time < other.time ? 1 : one.time > other.time ? -1 : other.number - one.number;
    this.sorted = [...this.byKey.values()].sort(newestFirst).slice(0, KEPT);
    this.byKey = new Map(this.sorted.map((event) => [key(event), event]));
    if (this.isPaused) return;
    this.render();
    this.onChange();
  }

  /** Returns the number of refusals in the last hour. */
  refusals() {
    const since = Date.now() - 3_600_000;
    const is = (event) =>
      event.event === "refusal" && Date.parse(event.until ?? event.time) >= since;
    return total((this.sorted ?? []).filter(is));
  }

  render() {
    const all = this.sorted ?? [];
    // A newer server may have kinds that this page does not know.
    for (const event of all) this.box(event.event);
    for (const [kind, number] of this.boxes) {
      say(number, count(total(all.filter((event) => event.event === kind))));
    }
    const wanted = folded(all.filter((event) => !this.hidden.has(event.event)));
    const shown = wanted.slice(0, this.most);
    // An entry that stands for more events than before is another one.
    keyed(byId("event-list"), shown, (event) => key(event) + last(event), make, update);
    byId("event-list").hidden = shown.length === 0;
    byId("older-events").hidden = wanted.length <= this.most;
    const none = byId("no-events");
    none.hidden = shown.length > 0;
    say(none, all.length === 0 ? "No events in the last day." : "No event of these kinds.");
    say(byId("event-count"), `${many(total(wanted), "event")} of the last day`);
  }
}

/** Describes what happened: texts, and commands as objects with `command`. */
function sentence(event) {
  const bytes = size(event.bytes);
  const state = part(event.charged, event.max);
  const who = process(event);
  switch (event.event) {
    case "refusal":
      return [...who, ` was refused ${bytes}, with ${state} charged`];
    case "wait":
      return [...who, ` waits for ${bytes}, with ${state} charged`];
    case "granted":
      return [...who, ` got the ${bytes} that it waited for`];
    case "high":
      return [...who, ` exceeds the group's high by asking for ${bytes}, with ${state} charged`];
    case "reap":
      return [...who, ` ended, and the ${bytes} that it held were given back to the group`];
    case "kill":
      return [...who, ` was killed or told to end while it held ${bytes}`];
    case "limits":
      return ["limits changed by ", ...who];
    case "asked":
      return [
        `${many(event.processes, "process", "processes")} asked to give back ${bytes} for `,
        ...who,
      ];
    case "given":
      return [`${bytes} came back after `, ...who, " had asked for memory"];
    case "suspend":
      return [`${bytes} of `, ...who, " suspended"];
    case "resume":
      return [`${bytes} of `, ...who, " resumed"];
    case "lost":
      return [...who, ` is lost: the driver could not bring its ${bytes} back`];
    case "oom":
      return [
        ...who,
        ` asked for ${bytes}, and processes are killed to make room; ${state} charged`,
      ];
    default:
      return event.bytes == null ? who : [...who, ` ${bytes}`];
  }
}

/** Names a process. The public view has neither pids nor commands. */
function process({ pid, command, user }) {
  if (pid == null) return ["a process"];
  const owner = user == null ? "" : ` of ${foreign(user)}`;
  return command == null ? [`pid ${pid}${owner}`] : [`pid ${pid}${owner} `, { command }];
}

/** Returns what else is known: the killer or actor, the function, and who used most. */
function details(event) {
  const lines = [];
  if (event.until) lines.push([`the first time at ${dateTime(new Date(event.time))}`]);
  if (event.by) {
    const why = event.cause === "oom" ? `to make room for ${size(event.by.bytes)} of ` : "by ";
    lines.push([why, ...process(event.by)]);
  }
  if (event.function) lines.push([`in ${foreign(event.function)}`]);
  for (const holder of event.holders ?? [])
    lines.push([`${size(holder.bytes)} used by `, ...process(holder)]);
  return lines;
}

function nodes(texts) {
  return texts.map((text) => {
    if (typeof text === "string") return text;
    const shown = foreign(text.command) || UNKNOWN;
    return el("bdi", { class: "command", title: shown }, shown);
  });
}

/** Makes an entry. An event never changes, so the entry does not either. */
function make(event) {
  const date = new Date(last(event));
  const more = details(event);
  const group = foreign(event.group || "no group");
  const gpu = event.gpu ? ` on GPU ${gpuName(event.gpu)}` : "";
  const entry = el("li", { class: `event event-${event.event}` });
  entry.dataset.kind = event.event;
  const text = el("p", { class: "event-text" }, ...nodes(sentence(event)));
  if (event.count > 1) text.append(`, ${count(event.count)} times`);
  if (event.bytes != null) text.title = exact(event.bytes);
  entry.append(
    el(
      "p",
      { class: "event-head" },
      el("span", { class: `tag tag-${event.event}` }, foreign(event.event)),
      el("span", { class: "event-place" }, el("bdi", { title: group }, group), gpu),
      el("time", { datetime: event.time }),
    ),
    text,
  );
  label(entry.querySelector("time"), recent(date), `${dateTime(date)} (${last(event)})`);
  if (more.length > 0) {
    const list = el("ul", {}, ...more.map((line) => el("li", {}, ...nodes(line))));
    entry.append(el("details", {}, el("summary", {}, "Details"), list));
  }
  return entry;
}

function update(entry, event) {
  say(entry.querySelector("time"), recent(new Date(last(event))));
}
