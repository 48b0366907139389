"use strict";
// Numbers and elements, as the page shows them.
const byId = (id) => document.getElementById(id);
const query = (selector) => document.querySelectorAll(selector);

function make(tag, fields = {}, ...inside) {
  const found = Object.assign(document.createElement(tag), fields);
  found.append(...inside);
  return found;
}

function scaled(value, units) {
  const [factor, unit] = units.find(([least]) => value >= least * 0.9995) ?? units.at(-1);
  return +(value / factor).toPrecision(3) + " " + unit;
}
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]];
const SIZES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
const AMOUNTS = ["P", "T", "G", "M", "k", ""].map((p, i) => [10 ** (15 - 3 * i), `${p}FLOP`]);

function time(value) {
  if (value === null || value === undefined) return "not priced";
  if (!D.seconds || value === 0) return String(+value.toPrecision(4));
  return scaled(value, TIMES);
}
const size = (value) => (value === null ? "no limit" : scaled(value, SIZES));
const amount = (value) => (value === null ? "not known" : scaled(value, AMOUNTS));
const share = (part) => (part > 0 && part < 0.001 ? "< 0.1 %" : +(100 * part).toFixed(1) + " %");
const WHOLE = new Intl.NumberFormat("en-US");
const whole = (number) => WHOLE.format(number);
const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
const listed = (...texts) => texts.filter(Boolean).join(" · ");

const color = (number) => (number < 0 ? "#999999" : D.palette[number % D.palette.length]);
