// Colours: one of eight for each top group, and what the style sheet says a colour is.

const COUNT = 8;
const given = new Map();

/** Returns the class with the colour of a group: that of its top group, which keeps it. */
export function colour(group) {
  const { key } = group.top;
  if (!given.has(key)) given.set(key, given.size % COUNT);
  return `colour-${given.get(key)}`;
}

/** Returns the colours that canvases need, as the present theme has them. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colours = {};
  for (const name of ["text", "muted", "line", "accent", "limit", "refused", "killed", "surface"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  for (let at = 0; at < COUNT; at += 1) {
    probe.style.color = `var(--colour-${at})`;
    colours[`colour-${at}`] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.font = `12px ${style.getPropertyValue("--font")}`;
  return colours;
}
