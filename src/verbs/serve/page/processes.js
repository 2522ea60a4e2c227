// The processes in groups, with the parts of their memory.

import { PROCESSES, USERS } from "./columns.js";
import { attribute, byId, el, keepInput, label, say } from "./dom.js";
import { UNKNOWN, count, exact, foreign, gpuName, many, size, span } from "./format.js";
import { Grid, declared } from "./grid.js";
import { groupName } from "./groups.js";
import { processKey, processRow } from "./state.js";

const PARTS = ["allocations", "pools", "managed", "driver"];

export class Processes {
  constructor() {
    this.filter = "";
    this.grid = new Grid(byId("process-table"), {
      name: "Processes",
      columns: declared(PROCESSES, {
        ...OWN,
        total: { fill: (...row) => total(...row, this.most) },
      }),
      key: processRow,
      row: (element, process) => attribute(element, "data-pid", process.pid),
      onSort: () => this.show(this.state),
      empty: "No process matches.",
    });
    const filter = byId("process-filter");
    filter.addEventListener("input", () => {
      this.filter = filter.value.trim().toLowerCase();
      this.show(this.state);
    });
    keepInput(filter, "process", (text) => (this.filter = text.trim().toLowerCase()));
    const choose = (cell, { user }) => {
      if (!cell.button) {
        cell.button = cell.appendChild(el("button", { type: "button", class: "group-name" }));
        cell.button.addEventListener("click", () => {
          filter.value = cell.button.textContent;
          filter.dispatchEvent(new Event("input"));
        });
      }
      label(cell.button, foreign(user), "Filter the processes by this user");
    };
    this.users = new Grid(byId("user-table"), {
      name: "Users",
      columns: declared(USERS.filter(({ key }) => key !== "gpu"), {
        user: { fill: choose },
      }),
      key: ({ key }) => key,
      onSort: () => this.show(this.state),
      empty: "No user has a process in a group.",
    });
  }

  show(state) {
    if (!state) return;
    this.state = state;
    byId("processes-public").hidden = !state.isPublic;
    byId("processes-shown").hidden = state.isPublic;
    const all = state.processCount();
    if (state.isPublic) {
      say(byId("process-count"), many(all, "process", "processes"));
      return;
    }
    const rows = this.filter
      ? state.processes.filter((one) => matches(one, this.filter))
      : state.processes;
    this.most = Math.max(1, ...rows.map((row) => row.total ?? 0));
    this.grid.show(rows);
    this.users.show(usersOf(state.processes));
    const entries = many(state.processes.length, "entry", "entries");
    const text = many(all, "process", "processes");
    say(byId("process-count"), this.filter ? `${count(rows.length)} of ${entries}` : text);
    const none = "No process uses a GPU in a group.";
    say(this.grid.empty, state.processes.length === 0 ? none : "No process matches.");
  }
}

/** Returns the sums of each user over all groups and GPUs, those with the most memory first. */
function usersOf(processes) {
  const users = new Map();
  for (const process of processes) {
    const { uid, user, state: said, total, suspended, waits_for: waits } = process;
    // Machines can number users differently.
    const key = process.machine ? user : uid;
    if (!users.has(key)) {
      users.set(key, { key, uid, user, seen: new Set(), total: 0, suspended: 0, waiting: 0 });
    }
    const sum = users.get(key);
    if (said !== "draining") sum.seen.add(processKey(process));
    sum.processes = sum.seen.size;
    sum.total += total ?? 0;
    sum.suspended += suspended ?? 0;
    if (waits) {
      sum.waiting += 1;
      sum.waited_ms = Math.max(sum.waited_ms ?? 0, waits.waited_ms);
    }
  }
  return [...users.values()].sort((one, other) => other.total - one.total);
}

function matches(process, filter) {
  const texts = [process.user, process.group, process.command, process.pid, state(process)];
  return texts.some((text) => text != null && foreign(text).toLowerCase().includes(filter));
}

function state({ waits_for: waits, state: said, suspended }) {
  if (waits) return `waits for ${size(waits.bytes)}, ${span(waits.waited_ms)}`;
  return suspended > 0 ? `${said}, ${size(suspended)} on the host` : said;
}

/** What the page shows in its own way. */
const OWN = {
  group: {
    fill: (cell, { machine, group: name }) => {
      const full = groupName({ machine, name });
      cell.name ??= cell.appendChild(el("bdi", {}));
      say(cell.name, full);
      attribute(cell, "title", full);
    },
  },
  pid: { text: ({ pid }) => (pid == null ? UNKNOWN : String(pid)), hint: pidHint },
  gpu: {
    sort: ({ gpu }) => gpu?.index,
    fill: (cell, { gpu }) => label(cell, gpuName(gpu), gpu?.uuid),
  },
  state: { sort: state, fill: stateCell },
};

function pidHint({ pid, own_pid: own }) {
  return own != null && own !== pid ? `pid ${own} in its own namespace` : null;
}

/** Shows the parts of a process's memory, in a bar that is as long as the memory is large. */
function total(cell, process, most) {
  if (!cell.parts) {
    const bar = el("div", { class: "parts", "aria-hidden": "true" });
    const pieces = PARTS.map((id) => bar.appendChild(el("div", { class: `piece piece-${id}` })));
    cell.parts = { pieces, text: el("span", { class: "parts-text" }) };
    cell.append(cell.parts.text, bar);
  }
  const { pieces, text } = cell.parts;
  label(text, size(process.total), exact(process.total));
  PARTS.forEach((id, at) => {
    const share = (process[id] ?? 0) / most;
    pieces[at].style.inlineSize = `${Math.min(1, share) * 100}%`;
  });
}

function stateCell(cell, process) {
  cell.tag ??= cell.appendChild(el("span", {}));
  const said = state(process);
  const kind = process.waits_for ? "waits" : process.state;
  attribute(cell.tag, "class", kind === "running" ? "plain" : `tag tag-${kind}`);
  attribute(cell, "title", said);
  say(cell.tag, said);
}
