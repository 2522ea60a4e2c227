// The processes in groups, with the parts of their memory.

import { PROCESSES } from "./columns.js";
import { attribute, byId, el, label, say } from "./dom.js";
import { UNKNOWN, count, exact, foreign, gpuName, many, size, span } from "./format.js";
import { Grid, declared } from "./grid.js";
import { processRow } from "./state.js";

const PARTS = ["allocations", "pools", "managed", "driver"];

export class Processes {
  constructor() {
    this.filter = "";
    this.grid = new Grid(byId("process-table"), {
      name: "Processes",
      columns: declared(PROCESSES, OWN),
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

/** What the page shows in its own way. */
const OWN = {
  pid: { text: ({ pid }) => (pid == null ? UNKNOWN : String(pid)), hint: pidHint },
  gpu: {
    sort: ({ gpu }) => gpu?.index,
    fill: (cell, { gpu }) => label(cell, gpuName(gpu), gpu?.uuid),
  },
  total: { fill: total },
  state: { sort: state, fill: stateCell },
};

function pidHint({ pid, own_pid: own }) {
  return own != null && own !== pid ? `pid ${own} in its own namespace` : null;
}

function total(cell, process) {
  if (!cell.parts) {
    const bar = el("div", { class: "parts", "aria-hidden": "true" });
    const pieces = PARTS.map((id) => bar.appendChild(el("div", { class: `piece piece-${id}` })));
    cell.parts = { pieces, text: el("span", { class: "parts-text" }) };
    cell.append(cell.parts.text, bar);
  }
  const { pieces, text } = cell.parts;
  label(text, size(process.total), exact(process.total));
  PARTS.forEach((id, at) => {
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
