// The processes in groups, with the parts of their memory.

import { attribute, byId, el, label, say } from "./dom.js";
import { UNKNOWN, count, exact, foreign, gpuName, many, size, span } from "./format.js";
import { Grid } from "./grid.js";
import { processRow } from "./state.js";

const PARTS = [
  ["allocations", "Allocations"],
  ["pools", "Pools"],
  ["managed", "Managed"],
  ["driver", "Driver"],
];

export class Processes {
  constructor() {
    this.filter = "";
    this.grid = new Grid(byId("process-table"), {
      name: "Processes",
      columns: columns(),
      key: processRow,
      row: (element, process) => attribute(element, "data-pid", process.pid),
      onSort: () => this.show(this.state),
      empty: "No process matches.",
    });
    byId("process-filter").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      this.show(this.state);
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
    this.grid.show(rows);
    const entries = many(state.processes.length, "entry", "entries");
    const text = many(all, "process", "processes");
    say(byId("process-count"), this.filter ? `${count(rows.length)} of ${entries}` : text);
    const none = "No process uses a GPU in a group.";
    say(this.grid.empty, state.processes.length === 0 ? none : "No process matches.");
  }
}

function matches(process, filter) {
  const texts = [process.user, process.group, process.command, process.pid, state(process)];
  return texts.some((text) => text != null && foreign(text).toLowerCase().includes(filter));
}

function state({ waits_for: waits, state: said, suspended }) {
  if (waits) return `waits for ${size(waits.bytes)}, ${span(waits.waited_ms)}`;
  return suspended > 0 ? `${said}, ${size(suspended)} on the host` : said;
}

function columns() {
  const text = (id, head, value) => ({
    id,
    head,
    sort: value,
    fill: (cell, process) => name(cell, value(process)),
  });
  const bytes = (id, head, title) => ({
    id,
    head,
    title,
    number: true,
    sort: (process) => process[id],
    text: (process) => size(process[id]),
    hint: (process) => exact(process[id]),
  });
  return [
    {
      id: "pid",
      head: "PID",
      number: true,
      sort: (one) => one.pid,
      text: (one) => (one.pid == null ? UNKNOWN : String(one.pid)),
      hint: pidHint,
    },
    text("user", "User", (one) => one.user),
    text("group", "Group", (one) => one.group),
    {
      id: "gpu",
      head: "GPU",
      sort: (one) => one.gpu?.index,
      text: (one) => gpuName(one.gpu),
      hint: (one) => one.gpu?.uuid,
    },
    { ...bytes("total", "Total", "Memory that counts against the limit"), fill: total },
    bytes("allocations", "Allocations", "Plain and virtual memory, arrays and graphs"),
    bytes("pools", "Pools", "Memory that pools have reserved"),
    bytes("managed", "Managed", "Managed memory, which nvidia-smi does not show"),
    bytes("driver", "Driver", "Memory of contexts and code"),
    { id: "state", head: "State", sort: state, fill: stateCell },
    text("command", "Command", (one) => one.command),
  ];
}

function pidHint({ pid, own_pid: own }) {
  return own != null && own !== pid ? `pid ${own} in its own namespace` : null;
}

/** Shows text that other users wrote. */
function name(cell, value) {
  cell.name ??= cell.appendChild(el("bdi", {}));
  const shown = value == null ? UNKNOWN : foreign(value);
  say(cell.name, shown);
  attribute(cell, "title", value == null ? null : shown);
}

function total(cell, process) {
  if (!cell.parts) {
    const bar = el("div", { class: "parts", "aria-hidden": "true" });
    const pieces = PARTS.map(([id]) => bar.appendChild(el("div", { class: `piece piece-${id}` })));
    cell.parts = { pieces, text: el("span", { class: "parts-text" }) };
    cell.append(cell.parts.text, bar);
  }
  const { pieces, text } = cell.parts;
  label(text, size(process.total), exact(process.total));
  PARTS.forEach(([id], at) => {
    const share = process.total ? (process[id] ?? 0) / process.total : 0;
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
