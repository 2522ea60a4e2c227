// The tree of groups: usage, limits, state and the last hour of each, by GPU.

import { address, attribute, byId, el, keepInput, label, say, svg } from "./dom.js";
import {
  count,
  exact,
  foreign,
  gpuName,
  growth,
  many,
  setting,
  size,
  span,
} from "./format.js";
import { GROUPS } from "./columns.js";
import { Grid, declared } from "./grid.js";
import { lastHour } from "./history.js";

/** Returns what is worth knowing about a group on a GPU: texts with the class of a tag. */
export function conditions(group, gpu, state) {
  const users = state.users.get(`${group.name}\u0000${gpu.uuid}`);
  const found = [];
  if (users?.waits) {
    const { bytes, waited_ms: waited } = users.waits;
    found.push(["waits", `waits for ${size(bytes)}, ${span(waited)}`]);
  } else if (gpu.waiting > 0) {
    found.push(["waits", `${count(gpu.waiting)} waiting`]);
  }
  if (gpu.free === 0 && gpu.effective_max != null) found.push(["full", "full"]);
  if (gpu.high != null && gpu.usage > gpu.high) found.push(["high", "above high"]);
  if (gpu.suspended > 0) {
    const title = "Memory of suspended processes, which is on the host";
    found.push(["suspended", `${size(gpu.suspended)} suspended`, title]);
  }
  if (users?.draining > 0) found.push(["draining", "draining"]);
  if (gpu.trend) found.push(["leak", "may leak", `grows ${growth(gpu.trend)}`]);
  return found;
}

/** Returns a group's name as it is shown. */
export function groupName(group) {
  return foreign(group.machine ? `${group.machine}: ${group.name}` : group.name);
}

export class Groups {
  /** `onSelect` gets the group whose details the user wants to see. */
  constructor({ onSelect }) {
    this.onSelect = onSelect;
    this.folded = new Set();
    this.filter = "";
    this.gpu = "";
    this.selected = null;
    this.grid = new Grid(byId("group-table"), {
      name: "Groups",
      columns: this.columns(),
      key: (row) => row.key,
      row: (element, row) => this.row(element, row),
      onSort: () => this.show(this.state),
      empty: "No group matches.",
    });
    byId("group-filter").addEventListener("input", (event) => {
      this.filter = event.target.value.trim().toLowerCase();
      this.show(this.state);
    });
    byId("group-gpu").addEventListener("change", (event) => {
      this.gpu = event.target.value;
      this.show(this.state);
    });
    keepInput(byId("group-filter"), "filter", (text) => (this.filter = text.trim().toLowerCase()));
    keepInput(byId("group-gpu"), "gpu", () => (this.gpu = address.get("gpu")));
    byId("fold-all").addEventListener("click", () => this.foldAll(true));
    byId("unfold-all").addEventListener("click", () => this.foldAll(false));
  }

  columns() {
    const own = { max: { text: maxText }, usage: { fill: usage } };
    // A limit that is the group's own is said once.
    const other = ({ gpu }) => (gpu.effective_max === gpu.max ? null : gpu.effective_max);
    const [max, ...figures] = declared(GROUPS, own, ({ gpu }) => gpu);
    return [
      {
        id: "name",
        head: "Group",
        sort: ({ group }) => group.name,
        fill: (cell, row) => this.name(cell, row),
      },
      {
        id: "gpu",
        head: "GPU",
        sort: ({ gpu }) => gpu.index,
        text: ({ gpu }) => (gpu.uuid == null ? "all" : gpuName(gpu)),
        hint: ({ gpu }) => gpu.uuid,
      },
      max,
      {
        id: "effective",
        head: "Effective",
        title: "The smallest limit of the group and of the groups above.",
        number: true,
        sparse: true,
        sort: other,
        text: (row) => (other(row) == null ? "" : size(other(row))),
        hint: effectiveHint,
      },
      ...figures,
      {
        id: "state",
        head: "State",
        sort: (row) => tags(row, this.state)[0]?.[1],
        fill: (cell, row) => stateCell(cell, row, this.state),
      },
      {
        id: "trend",
        head: "Last hour",
        title: "Usage of the last hour, and how it grows",
        sort: ({ gpu }) => -(gpu.trend?.bytes_per_hour ?? 0),
        fill: trendCell,
      },
    ];
  }

  /** Shows the groups of a state. */
  show(state) {
    if (!state) return;
    this.state = state;
    this.chooseGpus(state);
    const isTree = this.grid.sorted.column === null;
    const hits = this.hits(state);
    const rows = [];
    for (const group of state.groups) {
      if (hits && !(isTree ? hits.shown : hits.found).has(group.key)) continue;
      if (!hits && isTree && this.isHidden(group)) continue;
      const gpus = group.gpus.filter((gpu) => !this.gpu || gpu.uuid === this.gpu);
      if (gpus.length === 0 && !this.gpu) gpus.push(allGpus(group));
      gpus.forEach((gpu, at) => rows.push(row(group, gpu, isTree, at > 0)));
    }
    this.grid.show(rows);
    const found = hits ? hits.found.size : state.groups.length;
    const all = many(state.groups.length, "group");
    say(byId("group-count"), hits ? `${count(found)} of ${all}` : all);
    const none = "No groups yet. `gpulimit run --max 4G -- COMMAND` makes one.";
    say(this.grid.empty, state.groups.length === 0 ? none : "No group matches.");
  }

  /** Returns the groups that match the filter, and these with the groups above them. */
  hits(state) {
    if (!this.filter) return null;
    const [found, shown] = [new Set(), new Set()];
    for (const group of state.groups) {
      if (!groupName(group).toLowerCase().includes(this.filter)) continue;
      found.add(group.key);
      for (let at = group; at; at = at.parent) shown.add(at.key);
    }
    return { found, shown };
  }

  isHidden(group) {
    for (let at = group.parent; at; at = at.parent) if (this.folded.has(at.key)) return true;
    return false;
  }

  foldAll(fold) {
    const above = this.state?.groups.filter((group) => group.below) ?? [];
    this.folded = new Set(fold ? above.map((group) => group.key) : []);
    this.show(this.state);
  }

  chooseGpus(state) {
    const select = byId("group-gpu");
    const names = state.gpus.map((gpu) => `${gpu.uuid} ${gpuName(gpu)}`).join("\n");
    if (select.names === names) return;
    select.names = names;
    select.replaceChildren(
      el("option", { value: "" }, "All GPUs"),
      ...state.gpus.map((gpu) => el("option", { value: gpu.uuid }, `GPU ${gpuName(gpu)}`)),
    );
    if (!state.gpus.some((gpu) => gpu.uuid === this.gpu)) this.gpu = "";
    select.value = this.gpu;
  }

  row(element, { group, gpu }) {
    element.dataset.group = group.name;
    element.dataset.gpu = gpu.uuid ?? "";
    element.classList.toggle("selected", group.key === this.selected);
  }

  select(key) {
    this.selected = key;
    this.grid.render();
  }

  name(cell, row) {
    const { group } = row;
    if (!cell.parts) this.makeName(cell);
    const { fold, name, root } = cell.parts;
    cell.group = group;
    cell.style.setProperty("--depth", row.depth);
    const folds = row.isTree && !row.isAgain && group.below && !this.filter;
    cell.classList.toggle("again", row.isTree && row.isAgain);
    fold.hidden = !folds;
    if (folds) {
      const isFolded = this.folded.has(group.key);
      attribute(fold, "aria-expanded", !isFolded);
      attribute(fold, "aria-label", `Groups below ${groupName(group)}`);
    }
    const full = groupName(group);
    const short = row.depth > 0 ? full.slice(full.lastIndexOf("/") + 1) : full;
    label(name, short, full);
    attribute(name, "aria-label", short === full ? null : full);
    attribute(name, "aria-pressed", group.key === this.selected);
    root.hidden = !this.state.hasRoots;
    if (this.state.hasRoots) label(root, foreign(group.root), foreign(group.root));
  }

  makeName(cell) {
    const fold = el("button", { type: "button", class: "fold" });
    const name = el("button", { type: "button", class: "group-name", dir: "auto" });
    const root = el("span", { class: "root", hidden: true });
    cell.parts = { fold, name, root };
    fold.addEventListener("click", () => {
      const { key } = cell.group;
      if (!this.folded.delete(key)) this.folded.add(key);
      this.show(this.state);
    });
    name.addEventListener("click", () => this.onSelect(cell.group));
    cell.append(fold, name, root);
  }
}

/** Makes a row: `isAgain` is true for a further GPU of the group of the row before. */
function row(group, gpu, isTree, isAgain) {
  const depth = isTree ? group.depth : 0;
  return { group, gpu, isTree, isAgain, depth, key: `${group.key}\u0000${gpu.uuid}` };
}

/** The row of a group that has used no GPU yet: only its limit for all GPUs is known. */
function allGpus(group) {
  const all = group.limits?.find((limit) => limit.gpu === "all");
  return { uuid: null, index: null, text: all?.max };
}

function maxText({ gpu }) {
  return gpu.uuid == null ? setting(gpu.text) : size(gpu.max);
}

function effectiveHint({ gpu }) {
  if (gpu.effective_max == null) return "no limit";
  return `${exact(gpu.effective_max)}, the limit of ${foreign(gpu.limited_by ?? "")}`;
}

function usage(cell, { gpu }) {
  if (!cell.parts) {
    cell.parts = {
      fill: el("div", { class: "meter-fill" }),
      text: el("span", { class: "meter-text" }),
    };
    cell.append(
      el("div", { class: "meter", "aria-hidden": "true" }, cell.parts.fill),
      cell.parts.text,
    );
  }
  const { fill, text } = cell.parts;
  const whole = gpu.effective_max ?? gpu.capacity;
  const share = whole ? Math.min(1, (gpu.usage ?? 0) / whole) : 0;
  fill.style.inlineSize = `${share * 100}%`;
  const level = share >= 0.95 ? " full" : share >= 0.8 ? " high" : "";
  attribute(fill, "class", `meter-fill${level}`);
  const said = whole && gpu.usage != null ? `, ${Math.round(share * 100)} %` : "";
  label(text, size(gpu.usage), exact(gpu.usage) + said);
}

function tags(row, state) {
  return conditions(row.group, row.gpu, state);
}

function stateCell(cell, row, state) {
  const found = tags(row, state);
  const said = found.map(([, text, more]) => (more ? `${text}: ${more}` : text)).join("; ");
  if (cell.said === said) return;
  cell.said = said;
  attribute(cell, "title", said || null);
  cell.replaceChildren(
    ...found.map(([kind, text]) => el("span", { class: `tag tag-${kind}` }, text)),
  );
}

const [WIDTH, HEIGHT] = [100, 24];

function trendCell(cell, { group, gpu }) {
  if (!cell.parts) {
    const line = svg("polyline", { class: "spark-line", points: "" });
    const area = svg("polygon", { class: "spark-area", points: "" });
    const picture = svg("svg", {
      class: "spark",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    });
    picture.append(area, line);
    cell.parts = { line, area, text: el("span", { class: "spark-text" }) };
    cell.append(picture, cell.parts.text);
  }
  const { line, area, text } = cell.parts;
  const past = gpu.uuid == null ? null : lastHour(group, gpu);
  const points = past ? pointsOf(past) : [];
  attribute(line, "points", points.map((point) => point.join()).join(" "));
  const ends =
    points.length > 0
      ? [
          [points.at(-1)[0], HEIGHT],
          [points[0][0], HEIGHT],
        ]
      : [];
  attribute(area, "points", [...points, ...ends].map((point) => point.join()).join(" "));
  const grows = gpu.trend ? `grows ${growth(gpu.trend)}` : "";
  const grower = gpu.trend?.process;
  const who = grower ? `, by pid ${grower.pid} (${foreign(grower.command)})` : "";
  const rising = gpu.trend
    ? `${grows}; the floor has risen for ${span(gpu.trend.rising_ms)}${who}`
    : null;
  label(text, gpu.trend ? growth(gpu.trend) : "", rising);
}

/** Returns the points of a line through the known usage: figures from 0 to 1, oldest first. */
function pointsOf(past) {
  const step = WIDTH / Math.max(1, past.length - 1);
  const place = (share, at) => [
    (at * step).toFixed(1),
    (HEIGHT - 1 - share * (HEIGHT - 2)).toFixed(1),
  ];
  const points = past.map((share, at) => (share === null ? null : place(share, at)));
  return points.filter((point) => point !== null);
}
