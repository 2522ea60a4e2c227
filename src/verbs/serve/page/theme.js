// The theme: that of the system, light or dark.

import { announce, byId, remember, remembered, say } from "./dom.js";

const NAMES = ["auto", "light", "dark"];

export class Theme {
  /** `onChange` is called after each change. */
  constructor(onChange) {
    this.onChange = onChange;
    this.set(remembered("theme"));
    byId("theme").addEventListener("click", () => this.next());
  }

  set(name) {
    this.name = NAMES.includes(name) ? name : "auto";
    document.documentElement.dataset.theme = this.name;
    say(byId("theme"), `Theme: ${this.name}`);
  }

  next() {
    this.set(NAMES[(NAMES.indexOf(this.name) + 1) % NAMES.length]);
    remember("theme", this.name);
    announce(`Theme: ${this.name}`);
    this.onChange();
  }
}
