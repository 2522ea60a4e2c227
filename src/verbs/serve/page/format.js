// Text for people: sizes, times, durations, and text that other users wrote.

/** What stands for an unknown figure. */
export const UNKNOWN = "–";

const UNITS = [
  ["KiB", 10],
  ["MiB", 20],
  ["GiB", 30],
  ["TiB", 40],
];

function unit(bytes) {
  if (bytes < 1024) return ["B", 0];
  return UNITS.find(([, shift]) => Math.round((bytes * 10) / 2 ** shift) < 10240) ?? UNITS[3];
}

function figure(bytes, shift) {
  return shift === 0 ? String(bytes) : (bytes / 2 ** shift).toFixed(1);
}

/** Formats bytes as the command line does: `4.0 GiB`. */
export function size(bytes) {
  if (bytes == null) return UNKNOWN;
  const [name, shift] = unit(bytes);
  return `${figure(bytes, shift)} ${name}`;
}

/** Formats a limit as it was set, such as `1536MiB` or `50%`; `max` is no limit. */
export function setting(text) {
  const [, number, name] = /^(\d+)([KMGT]iB)?$/.exec(text ?? "max") ?? [];
  if (number === undefined) return text == null || text === "max" ? "no limit" : text;
  const [, shift] = UNITS.find(([known]) => known === name) ?? ["B", 0];
  return size(Number(number) * 2 ** shift);
}

/** Formats a part of a size in the size's unit: `3.6 of 4.0 GiB`. */
export function part(bytes, whole) {
  if (bytes == null || whole == null) return size(bytes);
  return `${figure(bytes, unit(whole)[1])} of ${size(whole)}`;
}

const grouped = new Intl.NumberFormat("en");

/** Formats a number with separators: `1,024`. */
export function count(number) {
  return number == null ? UNKNOWN : grouped.format(number);
}

/** Formats the exact number of bytes, for titles. */
export function exact(bytes) {
  return bytes == null ? "unknown" : `${count(bytes)} bytes`;
}

/** Formats "1 process" and "2 processes". */
export function many(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

/** Formats milliseconds in the unit that fits: `40 s`, `3 min`, `2 h 5 min`. */
export function span(milliseconds) {
  if (milliseconds == null) return UNKNOWN;
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** Formats how long ago a time of the server was. */
export function since(time) {
  return span(time == null ? null : Date.now() - Date.parse(time));
}

export function percent(number) {
  return number == null ? UNKNOWN : `${number} %`;
}

/** Formats the growth of a group's usage: `120.0 MiB/min, full in 34 min`. */
export function growth(trend) {
  const rates = [
    ["min", 60],
    ["h", 1],
    ["day", 1 / 24],
  ];
  const rate = ([, parts]) => trend.bytes_per_hour / parts;
  const chosen = rates.find((it) => rate(it) >= 10 * 2 ** 20) ?? rates[2];
  const said = `${size(Math.max(0, Math.floor(rate(chosen))))}/${chosen[0]}`;
  return trend.full_in_ms == null ? said : `${said}, full in ${span(trend.full_in_ms)}`;
}

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dated = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" });

/** Formats a time of day in the browser's zone. */
export function time(date) {
  return clock.format(date);
}

/** Formats a date and a time in the browser's zone. */
export function dateTime(date) {
  return dated.format(date);
}

/** Formats a time of the last day without its date. */
export function recent(date) {
  return Date.now() - date < 86_400_000 ? time(date) : dateTime(date);
}

/** Returns the name of the browser's time zone. */
export function zoneName() {
  return zone.formatToParts(new Date()).find((it) => it.type === "timeZoneName")?.value ?? "";
}

// The characters that `gpulimit` escapes on a terminal, too: controls, marks of writing direction,
// characters without width, line separators and tags.
const INVISIBLE = new RegExp(
  "[\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff" +
    "\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]",
  "gu",
);

/** Returns text of other users as it is shown: invisible characters become `\u202e`. */
export function foreign(text) {
  const unitOf = (found, at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, "0")}`;
  const shown = (found) => Array.from({ length: found.length }, (_, at) => unitOf(found, at));
  return String(text).replace(INVISIBLE, (found) => shown(found).join(""));
}

/** Returns the short name of a GPU: its index, or the start of its UUID where NVML is missing. */
export function gpuName(gpu) {
  if (gpu?.uuid == null) return UNKNOWN;
  const machine = gpu.machine ? `${foreign(gpu.machine)}:` : "";
  if (gpu.index != null) return `${machine}${gpu.index}`;
  return `${machine}${foreign(gpu.uuid)
    .replace(/^(.*:)?(GPU|MIG)-/, "")
    .slice(0, 4)}…`;
}
