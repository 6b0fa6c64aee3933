// Building elements. Text from other processes becomes text only: there is no way here from a text to markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Replace the children of an element by others. What is the same stays, so that a person can go on reading it, keeps the
// focus on it, and hits it with a click. A button changes as a whole, because another one does something else.
export function show(parent, ...children) {
  const wanted = document.createElement("div");
  wanted.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  update(parent, wanted);
}

function update(element, wanted) {
  const fresh = [...wanted.childNodes];
  for (const [place, child] of fresh.entries()) {
    const old = element.childNodes[place];
    if (!old) element.append(child);
    else if (old.isEqualNode(child)) continue;
    else if (old.nodeType === Node.ELEMENT_NODE && old.tagName === child.tagName && old.tagName !== "BUTTON") {
      for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      update(old, child);
    } else old.replaceWith(child);
  }
  while (element.childNodes.length > fresh.length) element.lastChild.remove();
}

// A table whose cells have labels, so that each row can become a list on a narrow screen.
export function table(caption, columns, rows) {
  const cell = (column, value, tag) =>
    h(tag, { class: column.kind, "data-label": column.title, scope: tag === "th" ? "row" : null }, value);
  return h("div", { class: "scroll" }, h("table", { class: "stacks" },
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.kind }, column.title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column, place) =>
      cell(column, row[place], column.kind === "name" ? "th" : "td")))))));
}
