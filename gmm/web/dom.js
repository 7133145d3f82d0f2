// Elements, made without markup: what comes from the manager only ever becomes text and attributes.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. Properties that begin with `on` are listeners, all others attributes. */
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

/** An SVG element. */
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** Sets a text, unless it is there: what a reader has selected stays selected. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

/** A labelled state: the shape before the word says as much as the colour. */
export const badge = (kind, label) => h("span", { class: `badge ${kind}` }, label);

const kept = new WeakMap();

/**
 * Brings the children of `parent` in line with `items`: one each, in their order. `make` returns an element and a
 * function that updates it; children whose item is still there stay, and with them focus and selection.
 */
export function keyed(parent, items, keyOf, make) {
  const known = new Map();
  for (const child of parent.children) {
    const entry = kept.get(child);
    if (entry) known.set(entry.key, child);
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    known.delete(key);
    if (!child) {
      const [element, update] = make(item);
      kept.set(element, { key, update });
      child = element;
    }
    kept.get(child).update(item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
}
