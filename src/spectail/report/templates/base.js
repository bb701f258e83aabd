"use strict";
// The numbers lie in the page as JSON. Names of classes come from users: they only ever become text nodes.
const report = JSON.parse(document.getElementById("report-data").textContent);
const GROUPS = ["head", "medium", "tail"];
const TONES = { head: "--blue", medium: "--amber", tail: "--red" };
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const named = (label) => make("bdi", {}, report.classes[label]);
const whole = (value) => Number(value).toLocaleString("en-GB");
// never -0.0
const fixed = (value, digits = 1) => { const text = value.toFixed(digits); return Number(text) === 0 ? text.replace("-", "") : text; };
const percent = (value, digits = 1) => (value === null || value === undefined ? "n/a" : `${fixed(value, digits)} %`);
const images = (count) => `${whole(count)} image${count === 1 ? "" : "s"}`;

// Colours are read from the style sheet, and read again when the scheme changes or the page is printed.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function onTheme(draw) {
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
}

function marker(group, x, y, size) {
  if (group === "medium") return `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  if (group === "tail") return `M${x},${y - 1.25 * size}l${1.25 * size},${2.2 * size}h${-2.5 * size}z`;
  return `M${x - size},${y}a${size},${size} 0 1,0 ${2 * size},0a${size},${size} 0 1,0 ${-2 * size},0z`;
}
