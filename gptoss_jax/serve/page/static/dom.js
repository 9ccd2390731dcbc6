// Makes elements. Text is always inserted as text: nothing here reads HTML.

// element("p", {class: "x", onclick: f}, "text", child): attributes, listeners, then children.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (attribute.startsWith("on")) made.addEventListener(attribute.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(attribute, value);
    else made.setAttribute(attribute, value);
  }
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

export function counted(number, what) {
  return `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}
