// A table that only has elements for the rows in view, so that thousands of rows stay fast.

import { attribute, el, keyed, label, say } from "./dom.js";
import { UNKNOWN, count, dateTime, exact, foreign, percent, since, size, span } from "./format.js";

/** Rows that are made beyond the visible ones, above and below. */
const SPARE = 6;

/** Shows text that other users wrote. */
function name(cell, value) {
  cell.name ??= cell.appendChild(el("bdi", {}));
  const shown = value == null ? UNKNOWN : foreign(value);
  say(cell.name, shown);
  attribute(cell, "title", value == null ? null : shown);
}

/** What cells of a unit show. Other units are text. */
const UNITS = {
  Bytes: (value) => ({
    number: true,
    text: (row) => size(value(row)),
    hint: (row) => exact(value(row)),
  }),
  Percent: (value) => ({ number: true, text: (row) => percent(value(row)) }),
  // How long ago the time is.
  Time: (value) => ({
    number: true,
    text: (row) => since(value(row)),
    hint: (row) => value(row) && dateTime(new Date(value(row))),
  }),
  Count: (value) => ({ number: true, text: (row) => count(value(row)) }),
  Ms: (value) => ({ number: true, text: (row) => span(value(row)) }),
};

/**
 * Returns the columns that the program declares. `own` has what the page shows in another way, by
 * key, and `of` returns the part of a row that has the values.
 */
export function declared(fields, own, of = (row) => row) {
  return fields.map(({ key, head, unit, says, goes, sparse }) => {
    const value = (row) => of(row)[key];
    const shown = UNITS[unit]?.(value) ?? { fill: (cell, row) => name(cell, value(row)) };
    const title = ["PID", "GPU"].includes(head) ? head : head[0] + head.slice(1).toLowerCase();
    return { id: key, head: title, title: says, goes, sparse, sort: value, ...shown, ...own[key] };
  });
}

/**
 * A table with sorting. A column has `id`, `head`, optionally `title` (of the head), `sort` (the
 * value of a row by which rows are sorted), `number` (aligned to the end), `sparse` (hidden if all
 * values are zero or unknown), `goes` (hidden where there is little room), and `fill` (sets a
 * cell's content) or `text` and `hint` (a cell's text and title).
 */
export class Grid {
  constructor(place, { name, columns, key, row, onSort, empty }) {
    this.columns = columns;
    this.key = key;
    this.row = row ?? (() => {});
    this.onSort = onSort ?? (() => {});
    this.rows = [];
    this.sorted = { column: null, down: false };
    this.heads = new Map();
    const head = el("div", { role: "row", class: "grid-row grid-head", "aria-rowindex": 1 });
    for (const column of columns) head.append(this.head(column));
    this.body = el("div", { role: "rowgroup", class: "grid-body" });
    this.table = el(
      "div",
      { role: "table", "aria-label": name, class: "grid-table" },
      el("div", { role: "rowgroup", class: "grid-top" }, head),
      this.body,
    );
    this.empty = el("p", { class: "empty", hidden: true }, empty ?? "Nothing to show.");
    this.scroller = el(
      "div",
      { class: "grid-scroller", tabindex: 0, role: "region", "aria-label": name },
      this.table,
    );
    place.append(this.scroller, this.empty);
    this.scroller.addEventListener("scroll", () => this.soon(), { passive: true });
    new ResizeObserver(() => this.soon()).observe(this.scroller);
  }

  head(column) {
    const attributes = {
      role: "columnheader",
      class: classOf(column),
    };
    if (!column.sort)
      return el("div", attributes, el("span", { title: column.title }, column.head));
    const button = el("button", { type: "button", title: column.title }, column.head);
    const head = el("div", attributes, button);
    button.addEventListener("click", () => this.sortBy(column));
    this.heads.set(column.id, head);
    return head;
  }

  /** Sorts by a column: first the direction that is of use for it, then the other, then not. */
  sortBy(column) {
    const first = Boolean(column.number);
    const { sorted } = this;
    if (sorted.column !== column) this.sorted = { column, down: first };
    else if (sorted.down === first) this.sorted = { column, down: !first };
    else this.sorted = { column: null, down: false };
    for (const [id, head] of this.heads) {
      const direction = this.sorted.down ? "descending" : "ascending";
      attribute(head, "aria-sort", this.sorted.column?.id === id ? direction : null);
    }
    this.onSort();
  }

  /** Shows these rows, in the order of the chosen column. Rows that are equal keep their order. */
  show(rows) {
    const { column, down } = this.sorted;
    this.rows = column === null ? rows : sort(rows, column.sort, down);
    for (const column of this.columns.filter((it) => it.sparse)) {
      column.isEmpty = !this.rows.some((row) => column.sort(row));
      this.heads.get(column.id).hidden = column.isEmpty;
    }
    attribute(this.table, "aria-rowcount", this.rows.length + 1);
    this.scroller.hidden = this.rows.length === 0;
    this.empty.hidden = this.rows.length > 0;
    this.render();
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.render();
    });
  }

  render() {
    const height = this.height();
    const { scrollTop, clientHeight } = this.scroller;
    const count = this.rows.length;
    const fit = Math.ceil((clientHeight || 600) / height);
    const most = Math.max(0, count - fit - SPARE);
    const first = Math.min(most, Math.max(0, Math.floor(scrollTop / height) - SPARE));
    const last = Math.min(count, first + fit + 2 * SPARE);
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.body.style.paddingBlockStart = `${first * height}px`;
    this.body.style.paddingBlockEnd = `${(count - last) * height}px`;
    const shown = this.rows.slice(first, last).map((row, at) => ({ row, at: first + at }));
    keyed(
      this.body,
      shown,
      ({ row }) => this.key(row),
      () => this.make(),
      (element, { row, at }) => {
        attribute(element, "aria-rowindex", at + 2);
        this.update(element, row);
      },
    );
    // A row that moves or leaves loses the focus.
    if (focused && document.activeElement !== focused) {
      (focused.isConnected ? focused : this.scroller).focus({ preventScroll: true });
    }
    this.first = first;
    this.last = last;
  }

  /** Returns the height of a row in pixels. All rows have the same. */
  height() {
    const measured = this.body.firstElementChild?.getBoundingClientRect().height;
    return measured || Number.parseFloat(getComputedStyle(this.body).lineHeight) || 36;
  }

  make() {
    const row = el("div", { role: "row", class: "grid-row" });
    row.cells = new Map();
    for (const column of this.columns) {
      const cell = el("div", { role: "cell", class: classOf(column) });
      row.cells.set(column.id, cell);
      row.append(cell);
    }
    return row;
  }

  update(element, row) {
    this.row(element, row);
    for (const column of this.columns) {
      const cell = element.cells.get(column.id);
      cell.hidden = Boolean(column.isEmpty);
      if (column.fill) column.fill(cell, row);
      else label(cell, column.text(row), column.hint?.(row));
    }
  }
}

function classOf({ id, number, goes }) {
  return `cell cell-${id}${number ? " number" : ""}${goes ? " goes" : ""}`;
}

/** Sorts a copy of the rows. Unknown values come last in both directions. */
function sort(rows, value, down) {
  const sign = down ? -1 : 1;
  const compare = (one, other) => {
    if (one === other) return 0;
    if (one == null) return 1;
    if (other == null) return -1;
    if (typeof one === "string") return sign * collator.compare(one, other);
    return sign * (one - other);
  };
  const pairs = rows.map((row) => [value(row), row]);
  return pairs.sort(([one], [other]) => compare(one, other)).map(([, row]) => row);
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
