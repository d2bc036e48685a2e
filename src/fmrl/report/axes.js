// Numbers as text, ticks, scales and marks: what a chart is made of. Every string is set as text, never as markup.
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

function put(node, attributes, parent, text) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
const html = (tag, attributes = {}, parent, text) => put(document.createElement(tag), attributes, parent, text);
const draw = (tag, attributes = {}, parent, text) =>
  put(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, parent, text);
const real = (v) => typeof v === "number" && Number.isFinite(v);
const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

function show(value, digits = 6, percent = false) {
  if (!real(value)) return "–";
  if (percent) return `${(100 * value).toFixed(digits > 2 ? 2 : 0).replace("-", "−")} %`;
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -4 || size > 14) return Number(value.toPrecision(digits)).toExponential().replace("-", "−").replace("e+", "e");
  return value.toLocaleString("en", { maximumFractionDigits: clamp(digits - 1 - size, 0, 12) }).replace("-", "−");
}

// Round numbers that divide [low, high] into about n parts; on a log axis 1, 2, 5 of each decade, or decades alone.
function linearTicks(low, high, n, whole) {
  const rough = (high - low) / Math.max(1, n);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power;
  if (whole) step = Math.max(1, step);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}
function logTicks(low, high, n, whole) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return linearTicks(low, high, n, whole);
  const every = Math.max(1, Math.ceil(decades / n));
  const leads = decades * 3 <= n + 1 ? [1, 2, 5] : decades * 2 <= n + 1 ? [1, 3] : [1];
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++) {
    if (leads.length === 1 && p % every) continue;
    for (const lead of leads) found.push(Number((lead * 10 ** p).toPrecision(12)));
  }
  return found.filter((v) => v >= low * 0.9999 && v <= high * 1.0001);
}

// A map from values to pixels and back.
function scale(log, [low, high], from, to) {
  const f = log ? Math.log : (v) => v;
  const g = log ? Math.exp : (v) => v;
  const a = f(low);
  const b = f(high);
  const at = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  at.back = (pixel) => g(a + ((pixel - from) / (to - from)) * (b - a));
  return at;
}

const MARKS = [
  (x, y, r) => `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`,
  (x, y, r) => `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (x, y, r) => `M${x},${y - 1.2 * r}l${1.2 * r},${2.1 * r}h${-2.4 * r}z`,
  (x, y, r) => `M${x},${y - 1.4 * r}l${1.4 * r},${1.4 * r}l${-1.4 * r},${1.4 * r}l${-1.4 * r},${-1.4 * r}z`,
  (x, y, r) => `M${x - r},${y - r}l${2 * r},${2 * r}m0,${-2 * r}l${-2 * r},${2 * r}`,
];
const CROSS = 4;

function paint(node, series) {
  const ink = `var(--ink${series.ink})`;
  const open = series.mark === CROSS;
  node.style.stroke = open ? ink : series.faint ? "none" : "var(--paper)";
  node.style.strokeWidth = open ? 2 : 1;
  node.style.fill = open ? "none" : ink;
  if (series.faint) node.style.fillOpacity = clamp(1.6 - 0.4 * Math.log10(series.x.length), 0.35, 0.85);
}
