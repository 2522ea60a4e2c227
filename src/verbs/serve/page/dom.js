// Elements of the page. Text of other users only ever becomes text nodes and attributes.

/** Makes an element with attributes and children. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value != null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Makes an element of SVG. */
export function svg(tag, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Sets an element's text, if it has another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, if it has another value; null removes it. */
export function attribute(element, name, value) {
  if (value == null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/** Sets text and title. */
export function label(element, text, title) {
  say(element, text);
  attribute(element, "title", title);
}

export function byId(id) {
  return document.getElementById(id);
}

/** Makes the children of a container those for `items`, and keeps elements of equal keys. */
export function keyed(container, items, key, make, update) {
  const known = container.made ?? new Map();
  const next = new Map();
  for (const item of items) {
    const id = key(item);
    next.set(id, known.get(id) ?? make(item));
  }
  for (const [id, element] of known) if (!next.has(id)) element.remove();
  let at = 0;
  for (const item of items) {
    const element = next.get(key(item));
    update(element, item);
    if (container.children[at] !== element) {
      container.insertBefore(element, container.children[at] ?? null);
    }
    at += 1;
  }
  container.made = next;
}

const live = () => byId("announcement");

/** Tells readers of the screen about a change that they asked for or have to know. */
export function announce(text) {
  say(live(), text);
}

/** What the address says of the state of the page: `#group=lab&range=1h`. */
export const address = new URLSearchParams(location.hash.slice(1));

/** Keeps a part of the state in the address; an empty value leaves it out. */
export function keep(name, value) {
  if (value) address.set(name, value);
  else address.delete(name);
  history.replaceState(null, "", `${location.pathname}${location.search}#${address}`);
}

/** Keeps what is in a control in the address, and takes it from there at the start. */
export function keepInput(input, name, change) {
  input.addEventListener("input", () => keep(name, input.value));
  if (!address.has(name)) return;
  input.value = address.get(name);
  change(input.value);
}

/** Keeps a choice for the next visit. A browser may refuse to store anything. */
export function remember(name, value) {
  try {
    localStorage.setItem(`gpulimit.${name}`, value);
  } catch {
    // The choice holds until the page is closed.
  }
}

export function remembered(name) {
  try {
    return localStorage.getItem(`gpulimit.${name}`);
  } catch {
    return null;
  }
}
