// A curve on a canvas, drawn by uPlot, with the figures under the pointer and a table beside it.

import { attribute, el, label, say } from "./dom.js";
import { UNKNOWN, count, exact, recent, size } from "./format.js";

const { uPlot } = globalThis;
const HEIGHT = 200;
/** Distances of the marks on the axis of sizes, in bytes: powers of two. */
const STEPS = Array.from({ length: 42 }, (_, power) => 2 ** power);

/**
 * The curves of one GPU or of one group on a GPU. `curves` are objects with `name`, `colour` (of
 * the palette) and `periods` as the server gives them; `limits` are lines with `name` and `bytes`.
 * Several curves are stacked. With a single curve, the range in each period is drawn, too.
 */
export class Chart {
  constructor() {
    this.title = el("h3", { dir: "auto" });
    this.summary = el("p", { class: "chart-summary" });
    this.place = el("div", { class: "chart-canvas", role: "img" });
    this.readout = el("p", { class: "chart-readout", "aria-hidden": "true" });
    this.table = el("div", { class: "chart-table", tabindex: 0, role: "region" });
    this.names = el("ul", { class: "legend chart-names", hidden: true });
    this.figures = el("details", {}, el("summary", {}, "Figures as a table"), this.table);
    this.figures.addEventListener("toggle", () => this.figures.open && this.fillTable());
    this.element = el(
      "article",
      { class: "card chart" },
      el("header", { class: "chart-head" }, this.title, this.summary),
      this.place,
      this.readout,
      this.names,
      this.figures,
    );
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  show(said, colours) {
    this.curves = said.curves;
    this.stack();
    this.limits = said.limits;
    this.colours = colours;
    label(this.title, said.title, said.title);
    say(this.summary, said.summary);
    attribute(this.place, "aria-label", `${said.title}. ${said.summary}`);
    attribute(this.table, "aria-label", `Figures of ${said.title}`);
    this.times = said.curves[0].periods.map((period) => Date.parse(period.time) / 1000);
    this.step = said.step / 1000;
    this.fillNames();
    if (this.figures.open) this.fillTable();
    this.draw();
    this.point(this.plot?.cursor.idx);
  }

  /** Puts the curves on each other: `floors` and `tops` have the bytes at which each lies. */
  stack() {
    let floors = this.curves[0].periods.map(() => 0);
    for (const curve of this.curves) {
      curve.floors = floors;
      curve.tops = curve.periods.map((one, at) => {
        const top = one.max ?? one.at_most;
        return top == null ? null : floors[at] + top;
      });
      floors = curve.tops.map((top, at) => top ?? floors[at]);
    }
  }

  /** Names the curves, if there are several. */
  fillNames() {
    this.names.hidden = this.curves.length < 2;
    if (this.names.hidden) return;
    const entry = ({ name, colour }) =>
      el(
        "li",
        {},
        el("span", { class: `swatch ${colour}`, "aria-hidden": "true" }),
        el("bdi", {}, name),
      );
    this.names.replaceChildren(...this.curves.map(entry));
  }

  draw() {
    const width = Math.floor(this.place.clientWidth);
    if (width === 0) return;
    const look = JSON.stringify([this.curves.length, this.colours]);
    // Of each period uPlot knows the top, for the scale; the curves are drawn below.
    const tops = this.curves.map((curve) => curve.tops);
    const times = [...this.times, this.times.at(-1) + this.step];
    const data = [times, ...tops.map((top) => [...top, null])];
    if (this.plot && this.look === look) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.look = look;
    this.plot = new uPlot(this.options(width), data, this.place);
  }

  options(width) {
    const { colours } = this;
    const axis = {
      stroke: colours.muted,
      font: colours.font,
      grid: { stroke: colours.line, width: 1 },
      ticks: { show: false },
    };
    const top = () => {
      const known = this.curves.flatMap(({ tops }) => tops.map((top) => top ?? 0));
      const limits = this.limits.map((limit) => limit.bytes);
      return [0, Math.max(2 ** 20, ...known, ...limits) * 1.08];
    };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      padding: [8, 28, 0, 0],
      scales: { x: { time: true }, y: { range: top } },
      axes: [
        { ...axis, size: 30, space: 70, values: timeMarks },
        {
          ...axis,
          size: 74,
          incrs: STEPS,
          values: (_, marks) => marks.map((mark) => (mark === 0 ? "0" : size(mark))),
        },
      ],
      series: [{}, ...this.curves.map(() => ({ paths: () => null, points: { show: false } }))],
      hooks: {
        draw: [(plot) => this.paint(plot)],
        setCursor: [(plot) => this.point(plot.cursor.idx)],
      },
    };
  }

  paint(plot) {
    const { ctx, bbox } = plot;
    const x = (second) => plot.valToPos(second, "x", true);
    const y = (bytes) => plot.valToPos(bytes, "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const brush = { ctx, x, y, step: this.step, times: this.times, scale: devicePixelRatio || 1 };
    const isSingle = this.curves.length === 1;
    for (const { periods, colour, floors, tops } of this.curves) {
      const stroke = this.colours[colour];
      if (isSingle) paintAreas(brush, periods, stroke);
      else paintLayer(brush, floors, tops, stroke);
      paintLines(brush, periods, stroke, tops);
    }
    for (const { bytes } of this.limits) {
      ctx.strokeStyle = this.colours.limit;
      ctx.lineWidth = 1.5 * brush.scale;
      ctx.setLineDash([6 * brush.scale, 4 * brush.scale]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y(bytes));
      ctx.lineTo(bbox.left + bbox.width, y(bytes));
      ctx.stroke();
    }
    ctx.setLineDash([]);
    const sum = (at, name) =>
      this.curves.reduce((all, { periods }) => all + (periods[at]?.[name] ?? 0), 0);
    const marks = this.times.map((_, at) => [sum(at, "refusals"), sum(at, "kills")]);
    paintMarks(brush, marks, bbox, this.colours);
    ctx.restore();
  }

  /** Says what is under the pointer. */
  point(at) {
    const period = at == null ? null : this.curves[0].periods[at];
    if (!period) {
      say(this.readout, "Point at the curve for its figures.");
      return;
    }
    const when = recent(new Date(period.time));
    const texts = this.curves.map(({ name, periods }) => {
      const text = described(periods[at]);
      return this.curves.length === 1 ? text : `${name}: ${text}`;
    });
    say(this.readout, `${when}  ${texts.join("; ")}`);
  }

  resize() {
    const width = Math.floor(this.place.clientWidth);
    if (!this.curves || width === 0) return;
    if (this.plot) this.plot.setSize({ width, height: HEIGHT });
    else this.draw();
  }

  fillTable() {
    const heads =
      this.curves.length === 1
        ? ["Time", "Highest", "Lowest", "At most", "At least", "Refusals", "Waited", "Kills"]
        : ["Time", ...this.curves.map(({ name }) => name)];
    const cells = (period, at) => {
      if (this.curves.length > 1) {
        return this.curves.map(({ periods }) => cell(described(periods[at]), null));
      }
      const bytes = [period.max, period.min, period.at_most, period.at_least];
      const waited = period.waited_ms ? `${Math.round(period.waited_ms / 1000)} s` : "0 s";
      const counts = [count(period.refusals), waited, count(period.kills)];
      return [
        ...bytes.map((it) => cell(size(it), exact(it))),
        ...counts.map((it) => cell(it, null)),
      ];
    };
    const cell = (text, title) => el("td", { title }, text);
    const lines = this.curves[0].periods.map((period, at) => {
      const time = el("th", { scope: "row" }, recent(new Date(period.time)));
      return el("tr", {}, time, ...cells(period, at));
    });
    this.table.replaceChildren(
      el(
        "table",
        {},
        el("caption", {}, `${this.title.textContent}: newest first`),
        el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
        el("tbody", {}, ...lines.reverse()),
      ),
    );
  }

  destroy() {
    this.plot?.destroy();
    this.element.remove();
  }
}

/** Describes a period: its usage, or the bounds of it. */
function described(period) {
  if (!period) return UNKNOWN;
  const { max, min, at_most: most, at_least: least, refusals, kills } = period;
  let text = "unknown";
  if (max != null) text = max === min ? size(max) : `${size(min)} to ${size(max)}`;
  else if (most != null)
    text = most === least ? size(most) : `perhaps ${size(least)} to ${size(most)}`;
  if (refusals > 0) text += `, ${count(refusals)} refused`;
  if (kills > 0) text += `, ${count(kills)} killed`;
  return text;
}

const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const seconds = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** Returns the texts of the marks on the axis of time: their distance says how much is needed. */
function timeMarks(_plot, marks, _axis, _space, distance) {
  const format = distance >= 86_400 ? days : distance >= 60 ? minutes : seconds;
  return marks.map((mark) => {
    const date = new Date(mark * 1000);
    const isMidnight = date.getHours() === 0 && date.getMinutes() === 0 && distance >= 60;
    return (isMidnight ? days : format).format(date);
  });
}

/** Fills what was used all the time, what was used at times, and what was perhaps used. */
function paintAreas({ ctx, x, y, step, times, scale }, periods, colour) {
  // Several periods may share a column of pixels.
  const columns = new Map();
  periods.forEach((period, at) => {
    const least = period.max == null ? period.at_least : period.min;
    const most = period.at_most ?? period.max ?? 0;
    const end = Math.round(x(times[at] + step));
    let column = Math.round(x(times[at]));
    do {
      const known = columns.get(column) ?? { floor: Infinity, reached: 0, most: 0 };
      known.floor = Math.min(known.floor, least);
      known.reached = Math.max(known.reached, period.max ?? period.at_least);
      known.most = Math.max(known.most, most);
      columns.set(column, known);
      column += 1;
    } while (column < end);
  });
  const area = (fill, alpha, low, high) => {
    ctx.fillStyle = fill;
    ctx.globalAlpha = alpha;
    for (const [column, of] of columns) {
      const height = y(low(of)) - y(high(of));
      if (height > 0) ctx.fillRect(column, y(high(of)), 1, height);
    }
    ctx.globalAlpha = 1;
  };
  area(
    colour,
    0.3,
    () => 0,
    (of) => of.floor,
  );
  area(
    colour,
    0.12,
    (of) => of.floor,
    (of) => of.reached,
  );
  area(
    hatching(ctx, colour, scale),
    1,
    (of) => of.reached,
    (of) => of.most,
  );
}

/** Fills what a group used, on what the groups below it in the stack used. */
function paintLayer({ ctx, x, y, step, times }, floors, tops, colour) {
  ctx.fillStyle = colour;
  ctx.globalAlpha = 0.35;
  tops.forEach((top, at) => {
    if (top === null) return;
    const [left, right] = [x(times[at]), x(times[at] + step)].map(Math.round);
    ctx.fillRect(left, y(top), right - left, y(floors[at]) - y(top));
  });
  ctx.globalAlpha = 1;
}

function hatching(ctx, colour, scale) {
  const side = Math.round(6 * scale);
  const tile = document.createElement("canvas");
  tile.width = side;
  tile.height = side;
  const brush = tile.getContext("2d");
  brush.strokeStyle = colour;
  brush.globalAlpha = 0.55;
  brush.lineWidth = scale;
  brush.beginPath();
  for (const from of [-side, 0, side]) {
    brush.moveTo(from, side);
    brush.lineTo(from + side, 0);
  }
  brush.stroke();
  return ctx.createPattern(tile, "repeat");
}

/** Draws the upper edge: solid where it is known, dotted where it is a bound. */
function paintLines({ ctx, x, y, step, times, scale }, periods, colour, tops) {
  const line = (dash, isIt) => {
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.75 * scale;
    ctx.setLineDash(dash);
    ctx.beginPath();
    let isOpen = false;
    periods.forEach((period, at) => {
      const bytes = isIt(period) ? tops[at] : null;
      if (bytes == null) {
        isOpen = false;
        return;
      }
      if (isOpen) ctx.lineTo(x(times[at]), y(bytes));
      else ctx.moveTo(x(times[at]), y(bytes));
      ctx.lineTo(x(times[at] + step), y(bytes));
      isOpen = true;
    });
    ctx.stroke();
    ctx.setLineDash([]);
  };
  line([], (one) => one.max != null);
  line([2 * scale, 3 * scale], (one) => one.max == null);
}

/** Marks refusals with triangles and kills with crosses, at the bottom and at the top. */
function paintMarks({ ctx, x, step, times, scale }, marks, bbox, colours) {
  const size_ = 5 * scale;
  marks.forEach(([refusals, kills], at) => {
    const middle = x(times[at] + step / 2);
    if (refusals > 0) {
      const top = bbox.top + bbox.height - 2 * size_;
      ctx.fillStyle = colours.refused;
      ctx.strokeStyle = colours.surface;
      ctx.lineWidth = scale;
      ctx.beginPath();
      ctx.moveTo(middle, top);
      ctx.lineTo(middle + size_, top + 2 * size_ - scale);
      ctx.lineTo(middle - size_, top + 2 * size_ - scale);
      ctx.closePath();
      ctx.fill();
      ctx.stroke();
    }
    if (kills > 0) {
      const centre = bbox.top + 2 * size_;
      ctx.strokeStyle = colours.killed;
      ctx.lineWidth = 2.5 * scale;
      ctx.beginPath();
      for (const way of [-1, 1]) {
        ctx.moveTo(middle - size_, centre - way * size_);
        ctx.lineTo(middle + size_, centre + way * size_);
      }
      ctx.stroke();
    }
  });
}
