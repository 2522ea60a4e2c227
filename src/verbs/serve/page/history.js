// The past of groups, fetched when it is needed and kept for as long as it is fresh.

import { get } from "./server.js";

/** How long the last hour of a group is kept before it is fetched again, in milliseconds. */
const FRESH = 60_000;
/** Requests for the last hour of groups that run at the same time. */
const AT_ONCE = 2;
/** Groups whose last hour is kept. */
const KEPT = 2_000;

const hours = new Map();
const queue = [];
let running = 0;
let onChange = () => {};

/** Calls `change` when the last hour of a group has arrived. */
export function whenHoursArrive(change) {
  onChange = change;
}

/**
 * Returns the last hour of a group on a GPU: its usage by the minute as a part of the limit, or
 * null if it is not there yet. Groups of jobs are not asked for.
 */
export function lastHour(group, gpu) {
  if (group.kind !== "named") return null;
  const known = hours.get(group.key);
  if (!known || Date.now() - known.asked > FRESH) ask(group, known);
  return known?.gpus?.get(gpu.uuid) ?? null;
}

function ask(group, known) {
  hours.delete(group.key);
  hours.set(group.key, { asked: Date.now(), gpus: known?.gpus ?? null });
  if (hours.size > KEPT) hours.delete(hours.keys().next().value);
  // Rows that came into view last are served first, and rows that have left it are forgotten.
  queue.push(group);
  if (queue.length > 60) hours.delete(queue.shift().key);
  while (running < AT_ONCE && queue.length > 0) serve(queue.pop());
}

async function serve(group) {
  running += 1;
  try {
    const histories = await past(group, "1h");
    const gpus = new Map(histories.map((one) => [one.gpu.uuid, shares(one)]));
    hours.set(group.key, { asked: Date.now(), gpus });
    onChange();
  } catch {
    // The next round asks again after a while.
  } finally {
    running -= 1;
    if (queue.length > 0) serve(queue.pop());
  }
}

/** Returns the histories of a group alone, without those of the groups below it. */
export async function past(group, since, signal) {
  // Other machines keep the histories of their groups.
  if (group.machine) return [];
  const said = await get("api/v1/history", { group: group.name, root: group.root, since }, signal);
  const isIts = (one) => one.name === group.name && one.root === group.root;
  return said.histories.filter(isIts);
}

/**
 * Returns usage as parts of the limit, or of the highest usage where there is no limit; null where
 * it is unknown.
 */
function shares(one) {
  const usage = one.periods.map((period) => period.max ?? period.at_most);
  const top = one.effective_max ?? Math.max(1, ...usage);
  return usage.map((bytes) => (bytes == null ? null : Math.min(1, bytes / top)));
}
