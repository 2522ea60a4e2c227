// The curves: of each GPU with its top groups, or of one group with all that is known of it.

import { Chart } from "./chart.js";
import { colour, palette } from "./colours.js";
import { GROUPS } from "./columns.js";
import { address, announce, attribute, byId, el, keep, label, say } from "./dom.js";
import {
  count,
  exact,
  foreign,
  gpuName,
  growth,
  many,
  part,
  setting,
  size,
  span,
} from "./format.js";
import { declared } from "./grid.js";
import { conditions, groupName } from "./groups.js";
import { past } from "./history.js";

/** The ranges, and how often each is fetched again, in milliseconds. */
const RANGES = new Map([
  ["10m", 5_000],
  ["1h", 15_000],
  ["6h", 30_000],
  ["24h", 60_000],
  ["168h", 120_000],
]);
/** Top groups in the curves of a GPU. */
const MOST = 8;

export class Curves {
  /** `onClose` is called when the user goes back from a group to all groups. */
  constructor({ onClose }) {
    this.charts = new Map();
    this.range = "10m";
    this.group = null;
    this.fetched = 0;
    this.isBusy = false;
    for (const input of document.querySelectorAll("#ranges input")) {
      input.addEventListener("change", () => this.setRange(input.value));
    }
    this.setRange(address.get("range"));
    this.fetched = 0;
    byId("close-group").addEventListener("click", onClose);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  /** Chooses another range of time. */
  setRange(range) {
    if (!RANGES.has(range)) return;
    this.range = range;
    for (const input of document.querySelectorAll("#ranges input")) {
      input.checked = input.value === range;
    }
    keep("range", range);
    this.refresh();
  }

  /** Goes to the next longer or shorter range. */
  moveRange(by) {
    const names = [...RANGES.keys()];
    const at = names.indexOf(this.range) + by;
    if (names[at]) this.setRange(names[at]);
  }

  /** Shows the group of this key, or with null all GPUs. */
  choose(key) {
    this.group = key;
    this.fetched = 0;
    this.showState(this.state);
  }

  /** Gets each state, and fetches the curves again if they are old. */
  showState(state) {
    if (!state) return;
    this.state = state;
    this.details();
    if (Date.now() - this.fetched >= RANGES.get(this.range)) this.refresh();
  }

  details() {
    const group = this.group === null ? null : this.state.byKey.get(this.group);
    const title = byId("curves-title");
    byId("group-details").hidden = this.group === null;
    byId("close-group").hidden = this.group === null;
    if (this.group === null) {
      say(title, "Curves");
      return;
    }
    if (!group) {
      byId("group-facts").said = null;
      say(byId("group-facts"), "This group is gone.");
      return;
    }
    label(title, `Curves of ${groupName(group)}`, foreign(group.root));
    const facts = byId("group-facts");
    const said = factsOf(group, this.state);
    const text = JSON.stringify(said);
    if (facts.said === text) return;
    facts.said = text;
    const fact = ([name, value, hint]) =>
      el(
        "div",
        { class: "fact" },
        el("dt", {}, name),
        el("dd", { title: hint }, el("bdi", {}, value)),
      );
    const block = ([name, list]) =>
      el("div", {}, el("h3", {}, name), el("dl", {}, ...list.map(fact)));
    facts.replaceChildren(...said.map(block));
  }

  async refresh() {
    this.fetched = Date.now();
    this.asked = (this.asked ?? 0) + 1;
    const { asked, state, group: key, range } = this;
    if (!state) return;
    try {
      const chosen =
        key === null ? await this.ofGpus(state, range) : await this.ofGroup(state, key, range);
      // A newer question has been asked in the meantime.
      if (asked !== this.asked) return;
      this.failed(null);
      this.draw(chosen);
    } catch (error) {
      if (asked === this.asked) this.failed(error);
    }
  }

  failed(error) {
    const place = byId("curves-error");
    byId("loading-curves").hidden = true;
    place.hidden = error === null;
    say(place, error === null ? "" : `The curves could not be fetched: ${error.message}.`);
  }

  /** Returns the curves of one group: one for each GPU. */
  async ofGroup(state, key, range) {
    const group = state.byKey.get(key);
    if (!group) return [];
    const histories = await past(group, range);
    return histories.map((one) => ({
      id: `${key}\u0000${one.gpu.uuid}`,
      title: `${groupName(group)} on GPU ${gpuName(one.gpu)}`,
      summary: summary(one),
      step: one.period_ms,
      curves: [{ name: groupName(group), colour: colour(group), periods: one.periods }],
      limits: one.effective_max == null ? [] : [{ name: "Limit", bytes: one.effective_max }],
    }));
  }

  /** Returns the curves of each GPU: a curve for each top group with a history. */
  async ofGpus(state, range) {
    const use = (group) => group.gpus.reduce((sum, gpu) => sum + (gpu.usage ?? 0), 0);
    const named = state.tops().filter((group) => group.kind === "named");
    const tops = named.sort((one, other) => use(other) - use(one)).slice(0, MOST);
    const all = await Promise.all(tops.map(async (group) => [group, await past(group, range)]));
    const found = [];
    for (const gpu of state.gpus) {
      const curves = [];
      let step = null;
      for (const [group, histories] of all) {
        const one = histories.find((history) => history.gpu.uuid === gpu.uuid);
        if (!one || (step !== null && one.period_ms !== step)) continue;
        step = one.period_ms;
        curves.push({ name: groupName(group), colour: colour(group), periods: one.periods });
      }
      if (curves.length === 0) continue;
      align(curves);
      const isOne = curves.length === 1;
      const more =
        named.length > MOST ? ` The ${MOST} largest of ${count(named.length)} top groups.` : "";
      found.push({
        id: `\u0000${gpu.uuid}`,
        title: isOne ? `GPU ${gpuName(gpu)}: ${curves[0].name}` : `GPU ${gpuName(gpu)}: top groups`,
        summary: `${part(gpu.used ?? gpu.groups, gpu.total)} in use.${more}`,
        step,
        curves,
        limits: gpu.total == null ? [] : [{ name: "Memory of the GPU", bytes: gpu.total }],
      });
    }
    return found;
  }

  draw(chosen) {
    const place = byId("charts");
    const colours = palette();
    const wanted = new Set(chosen.map((one) => one.id));
    for (const [id, chart] of this.charts) {
      if (wanted.has(id)) continue;
      chart.destroy();
      this.charts.delete(id);
    }
    for (const one of chosen) {
      if (!this.charts.has(one.id)) {
        const chart = new Chart();
        this.charts.set(one.id, chart);
        place.append(chart.element);
      }
      this.charts.get(one.id).show(one, colours);
    }
    byId("loading-curves").hidden = true;
    byId("no-curves").hidden = chosen.length > 0;
    byId("chart-key").hidden = chosen.length === 0;
    attribute(place, "data-range", this.range);
    this.chosen = chosen;
  }

  /** Draws again in the colours of another theme. */
  repaint() {
    if (this.chosen) this.draw(this.chosen);
  }

  /** Says that the range has changed, for users of the keyboard. */
  sayRange() {
    const input = document.querySelector("#ranges input:checked");
    announce(`Curves of the last ${input.dataset.name}`);
  }
}

/** Makes the curves of a GPU begin and end together: two answers may be a period apart. */
function align(curves) {
  const first = curves
    .map(({ periods }) => periods[0].time)
    .sort()
    .at(-1);
  const last = curves.map(({ periods }) => periods.at(-1).time).sort()[0];
  for (const curve of curves) {
    curve.periods = curve.periods.filter(({ time }) => time >= first && time <= last);
  }
}

/** Describes a history in a sentence. */
function summary(one) {
  const sum = (name) => one.periods.reduce((all, period) => all + (period[name] ?? 0), 0);
  const said = [`${part(one.usage, one.effective_max)} used`];
  const highest = Math.max(...one.periods.map((period) => period.max ?? 0));
  if (highest > 0) said.push(`highest ${size(highest)}`);
  if (sum("refusals") > 0) said.push(`${count(sum("refusals"))} refused`);
  if (sum("kills") > 0) said.push(`${count(sum("kills"))} killed`);
  if (sum("waited_ms") > 0) said.push(`waited ${span(sum("waited_ms"))}`);
  if (one.trend) said.push(`grows ${growth(one.trend)}`);
  return said.join(", ");
}

/** Returns all that is known of a group, in blocks: name, value and title of each fact. */
function factsOf(group, state) {
  const settings = [
    ["Kind", group.kind === "job" ? "job, removed at its end" : "named, stays"],
    ["Processes", count(group.processes)],
  ];
  for (const limit of group.limits ?? []) {
    const all = ["max", "high", "low", "min", "keep_free"];
    const keys = all.filter((key) => limit[key] != null);
    const where = limit.gpu === "all" ? "all GPUs" : foreign(limit.gpu);
    const said = keys.map((key) => `${key} ${setting(limit[key])}`).join(", ");
    if (keys.length > 0) settings.push([`Set for ${where}`, said]);
  }
  return [
    ["Settings", [...settings, ...optionsOf(group.options ?? {})]],
    ...group.gpus.map((gpu) => [`GPU ${gpuName(gpu)}`, figuresOf(group, gpu, state)]),
  ];
}

function optionsOf(options) {
  const facts = [];
  if (options.on_limit === "wait") {
    facts.push(["When full", `requests wait, up to ${span(options.wait_timeout_ms)}`]);
  } else if (options.on_limit) {
    facts.push(["When full", "requests are refused"]);
  }
  if (options.oom && options.oom !== "none") facts.push(["Out of memory", options.oom]);
  if (options.count_context === false) facts.push(["CUDA contexts", "not counted"]);
  const host = options.suspended_max;
  if (host != null) facts.push(["Suspended, at most", host === "max" ? "no limit" : size(host)]);
  return facts;
}

const FACTS = declared(GROUPS, {});

function figuresOf(group, gpu, state) {
  const facts = [];
  const by =
    gpu.limited_by == null || gpu.limited_by === group.name
      ? ""
      : `, of ${foreign(gpu.limited_by)}`;
  const limit = gpu.effective_max == null ? "none" : size(gpu.effective_max) + by;
  facts.push(["Effective limit", limit, exact(gpu.effective_max)]);
  for (const { head, number, sort, sparse, text, hint } of FACTS) {
    const value = sort(gpu);
    const says = number && value != null && !(sparse && value === 0);
    if (says) facts.push([head, text(gpu), hint?.(gpu)]);
  }
    if (gpu.refusals) facts.push(["Why", `gpulimit why ${foreign(group.name)}`]);
  if (gpu.waits)
    facts.push(["Waited", `${many(gpu.waits, "time")}, ${span(gpu.waited_ms)} in all`]);
  const now = conditions(group, gpu, state).map(([, text]) => text);
  if (now.length > 0) facts.push(["State", now.join("; ")]);
  if (gpu.trend) facts.push(["Grows", growth(gpu.trend)]);
  return facts;
}
