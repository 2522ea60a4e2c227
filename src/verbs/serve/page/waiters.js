// The requests that wait for memory, the longest wait first.

import { attribute, byId, el, keyed, label, say } from "./dom.js";
import { UNKNOWN, count, exact, foreign, gpuName, many, size, span } from "./format.js";
import { groupName } from "./groups.js";
import { processRow } from "./state.js";

/** Waiters that are listed. */
const MOST = 50;
/** Processes that are named as those that have the memory. */
const HOLDERS = 3;

/** Shows the waiters of a state. */
export function showWaiters(state) {
  const all = state.isPublic ? [] : state.waiters();
  const waiting = state.isPublic ? waitingGroups(state) : all.map((one) => entry(one, all, state));
  keyed(byId("waiter-list"), waiting.slice(0, MOST), (one) => one.key, make, update);
  byId("waiter-list").hidden = waiting.length === 0;
  byId("no-waiters").hidden = waiting.length > 0;
  const more = byId("more-waiters");
  more.hidden = waiting.length <= MOST;
  say(more, `and ${count(waiting.length - MOST)} more`);
}

/** Says who has the memory that a process waits for, and when the process gives up. */
function reasons(process, state) {
  const { gpu, waits_for: waits } = process;
  const isIn = (one) => one.group === waits.group || one.group.startsWith(`${waits.group}/`);
  const has = (one) => one.gpu?.uuid === gpu?.uuid && one.total > 0 && one !== process;
  const holders = state.processes.filter((one) => has(one) && isIn(one));
  holders.sort((one, other) => other.total - one.total);
  const named = holders.slice(0, HOLDERS).map((one) => {
    const pid = one.pid == null ? "" : ` (pid ${one.pid})`;
    return `${size(one.total)} by ${foreign(one.user ?? "")}${pid}`;
  });
  if (holders.length > HOLDERS) named.push(`${count(holders.length - HOLDERS)} more`);
  const held = named.length > 0 ? `held: ${named.join(", ")}` : "";
  const full = state.groups.find(
    (one) => one.name === waits.group && one.machine === process.machine,
  );
  const { on_limit: rule, wait_timeout_ms: limit } = full?.options ?? {};
  const left = rule === "wait" ? `gives up in ${span(limit - waits.waited_ms)}` : "";
  return [held, left];
}

function entry(process, all, state) {
  const { bytes, waited_ms: waited, group } = process.waits_for;
  // The request that waits longest is the first in its line.
  const isAhead = (one) => one.waits_for.group === group && one.gpu?.uuid === process.gpu?.uuid;
  const line = all.filter(isAhead);
  const place = line.length > 1 ? `${line.indexOf(process) + 1} of ${line.length} in line` : "";
  const pid = process.pid == null ? "" : `pid ${process.pid} `;
  return {
    key: processRow(process),
    group: groupName({ machine: process.machine, name: process.group }),
    text: `waits ${span(waited)} for ${size(bytes)} of GPU ${gpuName(process.gpu)}`,
    title: exact(bytes),
    full: group == null || group === process.group ? "" : `${foreign(group)} is full`,
    more: [place, ...reasons(process, state)].filter(Boolean).join("; "),
    who: `${pid}${foreign(process.user ?? "")}`,
    command: foreign(process.command ?? UNKNOWN),
  };
}

/** Without processes, groups say how many wait. Those below a group are counted in it. */
function waitingGroups(state) {
  return state.groups.flatMap((group) =>
    group.gpus
      .filter((gpu) => gpu.waiting > 0)
      .map((gpu) => ({
        key: `${group.key}\u0000${gpu.uuid}`,
        group: groupName(group),
        text: `${many(gpu.waiting, "process", "processes")} for memory of GPU ${gpuName(gpu)}`,
        title: null,
        full: "",
        more: "",
        who: "",
        command: "",
      })),
  );
}

function make() {
  const entry = el("li", { class: "waiter" });
  entry.parts = {
    group: el("bdi", { class: "waiter-group" }),
    text: el("span", { class: "waiter-text" }),
    full: el("span", { class: "waiter-full" }),
    who: el("bdi", { class: "waiter-who" }),
    command: el("bdi", { class: "command" }),
    more: el("p", { class: "waiter-more" }),
  };
  const { group, text, full, who, command, more } = entry.parts;
  entry.append(
    el("p", { class: "waiter-what" }, group, text, full),
    el("p", { class: "waiter-process" }, who, command),
    more,
  );
  return entry;
}

function update(entry, one) {
  const { group, text, full, who, command, more } = entry.parts;
  say(more, one.more);
  label(group, one.group, one.group);
  label(text, one.text, one.title);
  say(full, one.full);
  say(who, one.who);
  label(command, one.command, one.command);
  attribute(entry, "data-group", one.group);
}
