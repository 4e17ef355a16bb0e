// Creating and changing elements.  Text goes in as text nodes; nothing in the dashboard parses HTML.

/** element("a", { class: "x", href: "#" }, "text", other) */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** Unchanged text is not touched, so that a selection in it survives and screen readers stay quiet. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Sync the children of `parent` with `items`: created once per key, then updated and kept in order. */
export function setItems(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}

/** Selects one of the `choices` without a click; null for none. */
export function markChoice(buttons, chosen) {
  for (const [value, button] of buttons) setAttribute(button, "aria-pressed", String(value === chosen));
}

/** Buttons, one of which is selected. */
export function choices(parent, options, chosen, onChoice) {
  const buttons = new Map();
  for (const [value, label] of options) {
    const button = element("button", { type: "button", "aria-pressed": String(value === chosen) }, label);
    button.addEventListener("click", () => {
      markChoice(buttons, value);
      onChoice(value);
    });
    buttons.set(value, button);
  }
  parent.replaceChildren(...buttons.values());
  return buttons;
}
