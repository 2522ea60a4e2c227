// The keys of the page, and its help.

import { announce, byId, remember, remembered } from "./dom.js";

const SECTIONS = { g: "gpus", t: "groups", c: "curves", w: "waiters", e: "events", u: "processes" };

/** Sets up the keys. Single keys can be turned off, since tools for dictation press them. */
export function setUpKeys({ pause, theme, curves, leaveGroup }) {
  const help = byId("help");
  const shortcuts = byId("shortcuts");
  shortcuts.checked = remembered("shortcuts") !== "off";
  shortcuts.addEventListener("change", () =>
    remember("shortcuts", shortcuts.checked ? "on" : "off"),
  );
  byId("help-open").addEventListener("click", () => help.showModal());
  // A click on the backdrop closes the help.
  help.addEventListener("click", (event) => event.target === help && help.close());

  const range = (by) => {
    curves.moveRange(by);
    curves.sayRange();
  };
  const keys = {
    "?": () => help.showModal(),
    "/": () => byId("group-filter").focus(),
    p: () => {
      pause();
      announce(byId("pause").getAttribute("aria-pressed") === "true" ? "Paused" : "Going on");
    },
    d: () => theme.next(),
    "[": () => range(-1),
    "]": () => range(1),
  };
  const go = (id) => {
    byId(id).focus({ preventScroll: true });
    byId(id).scrollIntoView({ block: "start" });
  };
  for (const [key, id] of Object.entries(SECTIONS)) keys[key] = () => go(id);
  // The address keeps the state of the page, not the section.
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      go(link.hash.slice(1));
    });
  }

  addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (help.open || event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    const isText = target.matches?.("input[type=search], textarea, select");
    if (key === "Escape") {
      escape(target, leaveGroup);
    } else if (!isText && shortcuts.checked && Object.hasOwn(keys, key)) {
      event.preventDefault();
      keys[key]();
    }
  });
}

/** Clears the filter that has the focus, or else leaves the group. */
function escape(target, leaveGroup) {
  if (!target.matches?.("input[type=search]")) {
    leaveGroup();
    return;
  }
  if (target.value === "") target.blur();
  target.value = "";
  target.dispatchEvent(new Event("input"));
}
