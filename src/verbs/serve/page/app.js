// The page of `gpulimit serve`: gets the server's state and shows it in the sections.

import { Connection } from "./connection.js";
import { Curves } from "./curves.js";
import { address, announce, byId, keep, say } from "./dom.js";
import { Events } from "./events.js";
import { count, exact, many, part, zoneName } from "./format.js";
import { Groups, groupName } from "./groups.js";
import { showGpus } from "./gpus.js";
import { whenHoursArrive } from "./history.js";
import { setUpKeys } from "./keys.js";
import { Processes } from "./processes.js";
import { State } from "./state.js";
import { follow } from "./server.js";
import { Theme } from "./theme.js";
import { showWaiters } from "./waiters.js";

const events = new Events({ onChange: showRefusals });
const processes = new Processes();
const connection = new Connection();
const curves = new Curves({ onClose: () => choose(null) });
const groups = new Groups({ onSelect: choose });
const theme = new Theme(() => curves.repaint());

let latest = null;
let shown = null;
let isPaused = false;
let version = null;

/** Shows the details of a group, or with the same group again those of all GPUs. */
function choose(group) {
  const key = group === null || groups.selected === group.key ? null : group.key;
  groups.select(key);
  curves.choose(key);
  keepGroup(key === null ? null : group);
  if (key === null) return;
  byId("curves").scrollIntoView({ block: "start" });
  announce(`Curves of ${groupName(group)}`);
}

function keepGroup(group) {
  keep("group", group?.name);
  keep("root", shown?.hasRoots || group?.machine ? group?.root : null);
}

/** Chooses the group that the address names, once the groups are known. */
function chooseAgain(state) {
  const [name, root] = [address.get("group"), address.get("root")];
  const group = state.groups.find((one) => one.name === name && one.root === (root ?? one.root));
  if (group) choose(group);
}

function show() {
  frame = null;
  if (latest === null || latest === shown || isPaused) return;
  const isFirst = shown === null;
  shown = latest;
  showGpus(shown);
  groups.show(shown);
  curves.showState(shown);
  showWaiters(shown);
  processes.show(shown);
  summarize(shown);
  if (isFirst) chooseAgain(shown);
  document.body.dataset.time = shown.said.time;
}

function summarize(state) {
  const sum = (name) => state.gpus.reduce((all, gpu) => all + (gpu[name] ?? 0), 0);
  // Without NVML only the memory of groups is known.
  const used = state.gpus.reduce((all, gpu) => all + (gpu.used ?? gpu.groups ?? 0), 0);
  const total = sum("total");
  say(byId("sum-gpus"), count(state.gpus.length));
  say(byId("sum-used"), total > 0 ? part(used, total) : "–");
  byId("sum-used").title = `${exact(used)} of ${exact(total)}`;
  say(byId("sum-groups"), count(state.groups.length));
  say(byId("sum-processes"), count(state.processCount()));
  say(byId("sum-waiting"), count(state.waitingCount()));
  byId("sum-waiting").classList.toggle("attention", state.waitingCount() > 0);
  showRefusals();
  say(byId("version"), state.said.version ?? "");
  const waiting = state.waitingCount();
  document.title = waiting > 0 ? `(${many(waiting, "waits", "wait")}) gpulimit` : "gpulimit";
}

function showRefusals() {
  const refusals = events.refusals();
  say(byId("sum-refusals"), count(refusals));
  byId("sum-refusals").classList.toggle("attention", refusals > 0);
}

let frame = null;

function soon() {
  // A hidden page gets no frames, and shows the latest state when it comes into view.
  frame ??= requestAnimationFrame(show);
}

function pause() {
  isPaused = !isPaused;
  events.isPaused = isPaused;
  connection.pause(isPaused ? shown?.time : null);
  byId("pause").setAttribute("aria-pressed", isPaused);
  say(byId("pause"), isPaused ? "Go on" : "Pause");
  if (!isPaused) {
    events.render();
    soon();
  }
}

/** Moves on what changes with time alone: the curves, and the events of the last hour. */
function moveOn() {
  if (shown === null || document.hidden || connection.mode() !== "live") return;
  curves.showState(shown);
  summarize(shown);
  events.load();
}

setInterval(moveOn, 5_000);
byId("pause").addEventListener("click", pause);
setUpKeys({ pause, theme, curves, leaveGroup: () => curves.group !== null && choose(null) });
whenHoursArrive(() => !isPaused && groups.grid.soon());
say(byId("zone"), zoneName());

follow({
  state(said) {
    connection.state(new Date(said.time));
    version ??= said.version;
    if (said.version !== version) connection.outdated(said.version);
    latest = new State(said);
    soon();
    events.load();
  },
  alive() {
    connection.alive();
  },
  lost(error) {
    connection.lost(error);
  },
});
