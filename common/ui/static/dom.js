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

// Replace the children of an element, unless they are the same: a person may be reading or selecting them.
export function show(parent, ...children) {
  const fresh = document.createElement("div");
  fresh.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  const same = fresh.childNodes.length === parent.childNodes.length
    && [...fresh.childNodes].every((node, place) => node.isEqualNode(parent.childNodes[place]));
  if (!same) parent.replaceChildren(...fresh.childNodes);
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
