// The GPUs: a bar each, with the memory of the top groups, of other processes, and what is free.

import { attribute, byId, el, keyed, label, say } from "./dom.js";
import { count, exact, foreign, gpuName, many, part, size } from "./format.js";
import { colour } from "./colours.js";
import { State } from "./state.js";

/** Groups that a GPU's legend names; the others are one entry. */
const NAMED = 6;

/** Returns the parts of a GPU's memory: `class`, `name`, `bytes` and the group's limit. */
function parts(state, gpu) {
  const groups = state
    .tops()
    .map((group) => ({ group, on: State.on(group, gpu.uuid) }))
    .filter(({ on }) => on && on.usage != null)
    .sort((one, other) => other.on.usage - one.on.usage);
  const shown = groups.length > NAMED + 1 ? groups.slice(0, NAMED) : groups;
  const rest = groups.slice(shown.length);
  const found = shown.map(({ group, on }) => ({
    id: group.key,
    class: colour(group),
    name: foreign(group.name),
    bytes: on.usage,
    limit: on.effective_max,
  }));
  if (rest.length > 0) {
    const bytes = rest.reduce((sum, { on }) => sum + on.usage, 0);
    found.push({ id: "rest", class: "rest", name: many(rest.length, "more group"), bytes });
  }
  return found;
}

function makeCard(gpu) {
  const card = el("article", { class: "card gpu" });
  card.parts = {
    title: el("h3", {}),
    name: el("span", { class: "gpu-name" }),
    used: el("p", { class: "gpu-used" }),
    bar: el("div", { class: "stack", role: "img" }),
    limit: el("div", { class: "stack-limit", hidden: true }),
    activity: el("p", { class: "note", hidden: true }),
    legend: el("ul", { class: "legend" }),
    note: el("p", { class: "note", hidden: true }),
  };
  const { title, name, used, bar, limit, activity, legend, note } = card.parts;
  card.dataset.gpu = gpu.uuid;
  card.append(
    el("header", { class: "gpu-head" }, el("div", {}, title, name), used),
    el("div", { class: "stack-frame" }, bar, limit),
    activity,
    legend,
    note,
  );
  return card;
}

/** Returns what NVML tells of a GPU's work: `Busy 97 %, 64 °C, 512 of 700 W, 1,980 MHz`. */
function activityOf({ busy, temperature, power, power_limit: most, clock }) {
  const figures = [
    busy == null ? null : `Busy ${busy} %`,
    temperature == null ? null : `${temperature} °C`,
    power == null ? null : `${power}${most == null ? "" : ` of ${most}`} W`,
    clock == null ? null : `${count(clock)} MHz`,
  ];
  return figures.filter(Boolean).join(", ");
}

function updateCard(card, gpu, state) {
  const { title, name, used, bar, limit, activity, legend, note } = card.parts;
  say(title, `GPU ${gpuName(gpu)}`);
  label(name, foreign(gpu.name ?? ""), [gpu.bus, gpu.uuid].filter(Boolean).join(", "));
  const groups = parts(state, gpu);
  const grouped = groups.reduce((sum, one) => sum + one.bytes, 0);
  const taken = gpu.used ?? grouped;
  label(used, part(taken, gpu.total), `${exact(taken)} of ${exact(gpu.total)}`);
  const whole = Math.max(gpu.total ?? 0, grouped + (gpu.others ?? 0), 1);
  const all = [...groups];
  if (gpu.others != null) {
    all.push({ id: "outside", class: "outside", name: "Others", bytes: gpu.others });
  }
  if (gpu.free != null) all.push({ id: "free", class: "free", name: "Free", bytes: gpu.free });

  const inBar = all.filter((one) => one.id !== "free" && one.bytes > 0);
  keyed(
    bar,
    inBar,
    (one) => one.id,
    () => el("div", { class: "stack-part" }),
    (element, one) => {
      attribute(element, "class", `stack-part ${one.class}`);
      attribute(element, "title", `${one.name}: ${size(one.bytes)}`);
      element.style.inlineSize = `${(one.bytes / whole) * 100}%`;
    },
  );
  const said = all.map((one) => `${one.name} ${size(one.bytes)}`);
  attribute(bar, "aria-label", `Memory of GPU ${gpuName(gpu)}: ${said.join(", ")}`);

  const sum = gpu.limits;
  const isInside = sum != null && gpu.total != null && sum < gpu.total;
  limit.hidden = !isInside;
  if (isInside) {
    limit.style.insetInlineStart = `${(sum / whole) * 100}%`;
    attribute(limit, "title", `The limits of the top groups add up to ${size(sum)}`);
  }

  const work = activityOf(gpu);
  activity.hidden = work === "";
  say(activity, work);
  keyed(legend, all, (one) => one.id, makeEntry, updateEntry);

  const notes = [];
  if (gpu.outsiders > 0) {
    const processes = gpu.outsiders === 1 ? "process" : "processes";
    notes.push(`In no group: ${gpu.outsiders} ${processes} with ${size(gpu.outside)}.`);
    if (gpu.outside_unsure > 0) {
      notes.push(`${size(gpu.outside_unsure)} of it may be in groups that the server cannot read.`);
    }
  }
  if (gpu.used == null) notes.push("NVML does not tell how much memory of this GPU is in use.");
  if (sum != null && gpu.total != null) {
    const more = sum > gpu.total ? ", more than the GPU has" : "";
    notes.push(`The limits of the top groups add up to ${size(sum)}${more}.`);
  }
  note.hidden = notes.length === 0;
  say(note, notes.join(" "));
}

function makeEntry() {
  const entry = el("li", {});
  entry.parts = [
    el("span", { class: "swatch", "aria-hidden": "true" }),
    el("bdi", { class: "legend-name" }),
    el("span", { class: "legend-size" }),
  ];
  entry.append(...entry.parts);
  return entry;
}

function updateEntry(entry, one) {
  const [swatch, name, bytes] = entry.parts;
  attribute(swatch, "class", `swatch ${one.class}`);
  label(name, one.name, one.name);
  const text = one.limit == null ? size(one.bytes) : part(one.bytes, one.limit);
  const limit = one.limit == null ? "" : `, limit ${exact(one.limit)}`;
  label(bytes, text, exact(one.bytes) + limit);
}

/** Shows the GPUs of a state. */
export function showGpus(state) {
  // Colours are given in the order of the names, so that they are the same after a reload.
  for (const group of state.tops()) colour(group);
  const place = byId("gpu-cards");
  keyed(
    place,
    state.gpus,
    (gpu) => gpu.uuid,
    makeCard,
    (card, gpu) => updateCard(card, gpu, state),
  );
  byId("no-gpus").hidden = state.gpus.length > 0;
  byId("machines").hidden = state.machines.length === 0;
  document.body.classList.toggle("machines", state.machines.length > 0);
  keyed(
    byId("lost-machines"),
    state.machines.filter(([, why]) => why != null),
    ([name]) => name,
    () => el("li", { class: "failed", dir: "auto" }),
    (row, [name, why]) => say(row, `${foreign(name)}: ${foreign(why)}`),
  );
}
