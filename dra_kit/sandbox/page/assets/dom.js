// Elements: made without markup, so that no name or output is ever read as HTML.

/**
 * Make an element.
 * Attributes: `on` has listeners by event, `data` has data attributes; true is an empty attribute, false and null none.
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  element.append(...children.flat().filter((child) => child || child === 0));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "width%") element.style.width = `${value}%`;
  else element.setAttribute(name, value === true ? "" : value);
}

/**
 * Make the children of `parent` match `items`, and touch only those that differ.
 * An item is `{key, look, make}`: an element stays as long as its `look` does. The focus stays where it is.
 */
export function update(parent, items) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const keys = new Set(items.map((item) => item.key));
  for (const [key, child] of before) if (!keys.has(key)) child.remove();
  let place = parent.firstElementChild;
  for (const { key, look, make } of items) {
    let element = before.get(key);
    if (!element || element.look !== look) {
      const fresh = make();
      fresh.dataset.key = key;
      fresh.look = look;
      if (element) {
        if (place === element) place = element.nextElementSibling;
        swap(element, fresh);
      }
      element = fresh;
    }
    if (element === place) place = place.nextElementSibling;
    else if (element.parentElement !== parent || element.nextElementSibling !== place) {
      parent.insertBefore(element, place);
    }
  }
}

/** Replace an element; if it has the focus, the part of the same name gets it. */
function swap(old, fresh) {
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = [...old.querySelectorAll("pre")].map((part) => part.scrollTop);
  old.replaceWith(fresh);
  fresh.querySelectorAll("pre").forEach((part, index) => { part.scrollTop = scrolled[index] ?? 0; });
  if (!focused) return;
  const name = focused.dataset.focus;
  const parts = [fresh, ...fresh.querySelectorAll("[data-focus]")];
  const same = parts.find((part) => name && part.dataset.focus === name);
  (same || fresh).focus({ preventScroll: true });
}

/** Set the text of an element, if it differs. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A button that looks like a link, or like text; `name` distinguishes it from others when it is drawn again.
 * Without `click`, a listener of a part around it is called.
 */
export function button(text, name, { look = "link", click = null, data = {}, ...attributes } = {}) {
  const on = click ? { click } : {};
  return h("button", { type: "button", class: look, data: { focus: name, ...data }, on, ...attributes }, text);
}

/** A button that copies text, and says that it did. */
export function copyButton(label, text) {
  const click = async () => {
    const copied = await navigator.clipboard.writeText(text()).then(() => true, () => false);
    made.textContent = copied ? "Copied" : "Copying is not allowed here";
    setTimeout(() => { made.textContent = label; }, 2000);
  };
  const made = button(label, label, { click });
  return made;
}

/** Code with a button to copy it. */
export function code(text, label = "Copy") {
  return h("div", { class: "code" }, h("pre", { tabindex: "0" }, text), copyButton(label, () => text));
}
