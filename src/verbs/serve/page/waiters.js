// The requests that wait for memory, the longest wait first.

import { attribute, byId, el, keyed, label, say } from "./dom.js";
import { UNKNOWN, count, exact, foreign, gpuName, many, size, span } from "./format.js";
import { groupName } from "./groups.js";
import { processRow } from "./state.js";

/** Waiters that are listed. */
const MOST = 50;

/** Shows the waiters of a state. */
export function showWaiters(state) {
  const waiting = state.isPublic ? waitingGroups(state) : state.waiters().map(entry);
  keyed(byId("waiter-list"), waiting.slice(0, MOST), (one) => one.key, make, update);
  byId("waiter-list").hidden = waiting.length === 0;
  byId("no-waiters").hidden = waiting.length > 0;
  const more = byId("more-waiters");
  more.hidden = waiting.length <= MOST;
  say(more, `and ${count(waiting.length - MOST)} more`);
}

function entry(process) {
  const { bytes, waited_ms: waited, group } = process.waits_for;
  const pid = process.pid == null ? "" : `pid ${process.pid} `;
  return {
    key: processRow(process),
    group: foreign(process.group),
    text: `waits ${span(waited)} for ${size(bytes)} of GPU ${gpuName(process.gpu)}`,
    title: exact(bytes),
    full: group == null || group === process.group ? "" : `${foreign(group)} is full`,
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
  };
  const { group, text, full, who, command } = entry.parts;
  entry.append(
    el("p", { class: "waiter-what" }, group, text, full),
    el("p", { class: "waiter-process" }, who, command),
  );
  return entry;
}

function update(entry, one) {
  const { group, text, full, who, command } = entry.parts;
  label(group, one.group, one.group);
  label(text, one.text, one.title);
  say(full, one.full);
  say(who, one.who);
  label(command, one.command, one.command);
  attribute(entry, "data-group", one.group);
}
