// The charts of a report and its theme switch. Data come as JSON from the page; every string is set as text, never as markup.
"use strict";
(() => {
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const NEAR = 28; // pixels within which a point counts as pointed at

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

  class Chart {
    constructor(figure, spec) {
      Object.assign(this, { figure, spec, view: null, whole: false, at: null, drag: null, hidden: new Set() });
      this.log = { x: Boolean(spec.x.log), y: Boolean(spec.y.log) };
      this.plot = figure.querySelector(".plot");
      this.plot.textContent = "";
      this.tools();
      this.legend();
      this.svg = draw("svg", { tabindex: 0, role: "application", "aria-roledescription": "chart" }, this.plot);
      this.svg.setAttribute("aria-label", `${figure.getAttribute("aria-label")}. Arrow keys walk along the points, plus and minus zoom, Escape resets.`);
      this.tip = html("div", { class: "tip", role: "status", hidden: "" }, this.plot);
      this.hint = html("p", { class: "hint" });
      this.plot.after(this.hint);
      this.listen();
      new ResizeObserver(() => this.plot.clientWidth !== this.width && this.render()).observe(this.plot);
      this.render();
    }

    tools() {
      this.controls = html("div", { class: "controls" });
      this.figure.insertBefore(this.controls, this.plot);
      const bar = html("div", { class: "tools" }, this.controls);
      const toggle = (label, on, change) => {
        const button = html("button", { type: "button", "aria-pressed": on }, bar, label);
        button.addEventListener("click", () => {
          const next = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", next);
          change(next);
          this.hide();
          this.render();
        });
        return button;
      };
      for (const axis of ["x", "y"]) {
        const wanted = this.spec[axis].toggle;
        if (!wanted) continue;
        const button = toggle(wanted, this.log[axis], (on) => {
          this.log[axis] = on;
          this.view = null;
        });
        button.disabled = !this.spec.series.some((s) => s[axis].some((v) => v > 0));
      }
      const floor = this.spec.y.floor;
      if (real(floor) && this.spec.series.some((s) => [...s.y, ...(s.low || [])].some((v) => real(v) && v < floor)))
        toggle("whole range", false, (on) => (this.whole = on));
      this.reset = html("button", { type: "button", disabled: "" }, bar, "reset zoom");
      this.reset.addEventListener("click", () => this.zoom(null));
    }

    legend() {
      const list = html("div", { class: "legend", role: "group", "aria-label": "series" });
      for (const series of this.spec.series) {
        const button = html("button", { type: "button", "aria-pressed": true }, list);
        const swatch = draw("svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": true, style: "width:26px" }, button);
        if (series.style !== "dots") this.stroke(draw("path", { d: "M1,6h24" }, swatch), series);
        if (series.style !== "line") paint(draw("path", { d: MARKS[series.mark || 0](13, 6, 4) }, swatch), series);
        html("bdi", {}, button, series.name);
        button.addEventListener("click", () => {
          const shown = this.hidden.delete(series);
          if (!shown) this.hidden.add(series);
          button.setAttribute("aria-pressed", shown);
          this.hide();
          this.render();
        });
      }
      this.controls.prepend(list);
    }

    stroke(node, series) {
      node.setAttribute("fill", "none");
      node.setAttribute("stroke-width", series.dash ? 1.8 : 2.2);
      node.setAttribute("stroke-linejoin", "round");
      if (series.dash) node.setAttribute("stroke-dasharray", DASHES[series.dash]);
      node.style.stroke = `var(--ink${series.ink})`;
    }

    get shown() {
      return this.spec.series.filter((s) => !this.hidden.has(s));
    }

    fits(series, i) {
      const [x, y] = [series.x[i], series.y[i]];
      return real(x) && real(y) && (!this.log.x || x > 0) && (!this.log.y || y > 0);
    }

    // The values each axis spans: the zoomed part or everything, with room around it, and never of no length.
    extent(axis, inside) {
      const values = [];
      for (const s of this.shown)
        for (let i = 0; i < s.x.length; i++)
          if (this.fits(s, i) && inside(s, i)) {
            values.push(s[axis][i]);
            if (axis === "y") for (const end of [s.low, s.high]) if (end && real(end[i]) && (!this.log.y || end[i] > 0)) values.push(end[i]);
          }
      if (this.spec.circle) {
        const [cx, cy, r] = this.spec.circle;
        values.push((axis === "x" ? cx : cy) - r, (axis === "x" ? cx : cy) + r);
      }
      let low = values.reduce((a, b) => Math.min(a, b), Infinity);
      let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
      if (!values.length) [low, high] = this.log[axis] ? [1, 10] : [0, 1];
      const { floor, zero, percent } = this.spec[axis];
      if (real(floor) && !this.whole && low < floor) [low, high] = [floor, Math.max(high, floor + 1)];
      if (this.log[axis]) {
        const room = low === high ? 1.5 : (high / low) ** (axis === "x" ? 0.02 : 0.06);
        return [low / room, high * room];
      }
      const fromZero = zero && low >= 0;
      if (fromZero) low = 0;
      const room = high > low ? (high - low) * (axis === "x" ? 0.02 : 0.06) : Math.abs(high) / 2 || 1;
      const padded = [fromZero ? 0 : low - room, high + room];
      return percent ? [clamp(padded[0], 0, 1), clamp(padded[1], padded[0] + 0.01, 1.01)] : padded;
    }

    domains(width, height) {
      const view = this.view;
      let x = view ? view.x : this.extent("x", () => true);
      let y = view && view.y ? view.y : this.extent("y", (s, i) => !view || (s.x[i] >= x[0] && s.x[i] <= x[1]));
      if (this.spec.equal) {
        const unit = Math.max((x[1] - x[0]) / width, (y[1] - y[0]) / height);
        const widen = ([a, b], pixels) => [(a + b) / 2 - (unit * pixels) / 2, (a + b) / 2 + (unit * pixels) / 2];
        [x, y] = [widen(x, width), widen(y, height)];
      }
      return { x, y };
    }

    render() {
      const width = (this.width = this.plot.clientWidth);
      if (!width) return;
      const height = this.spec.equal ? clamp(width * 0.85, 280, 560) : clamp(width * 0.5, 250, 400);
      const box = { left: 50, right: width - 12, top: 28, bottom: height - 44 };
      const { x, y } = this.domains(box.right - box.left, box.bottom - box.top);
      const rows = Math.max(3, Math.round((box.bottom - box.top) / 62));
      const { percent } = this.spec.y;
      const yTicks = (this.log.y ? logTicks : linearTicks)(y[0], y[1], rows, false);
      const label = (v) => (percent ? `${show(Number((100 * v).toPrecision(10)), 4)} %` : show(v, 4));
      box.left = Math.max(34, 12 + 7 * Math.max(...yTicks.map((v) => label(v).length), 0));
      this.box = box;
      const fresh = this.spec.equal ? this.domains(box.right - box.left, box.bottom - box.top) : { x, y };
      this.domain = fresh;
      this.sx = scale(this.log.x, fresh.x, box.left, box.right);
      this.sy = scale(this.log.y, fresh.y, box.bottom, box.top);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.replaceChildren();
      this.axes(yTicks, label);
      const clip = `clip-${this.spec.id}`;
      const hole = draw("clipPath", { id: clip }, draw("defs", {}, this.svg));
      draw("rect", { x: box.left - 6, y: box.top - 6, width: box.right - box.left + 12, height: box.bottom - box.top + 12 }, hole);
      const layer = draw("g", { "clip-path": `url(#${clip})` }, this.svg);
      if (this.spec.circle) {
        const [cx, cy, r] = this.spec.circle;
        draw("circle", { class: "ring", cx: this.sx(cx), cy: this.sy(cy), r: Math.abs(this.sx(cx + r) - this.sx(cx)) }, layer);
      }
      this.shown.forEach((series, k) => this.series(series, k, layer));
      this.over = draw("g", { "pointer-events": "none" }, this.svg);
      this.say();
      if (this.at) this.point(this.at.series, this.at.i);
    }

    axes(yTicks, label) {
      const { left, right, top, bottom } = this.box;
      const line = (kind, x1, y1, x2, y2) => draw("line", { class: kind, x1, y1, x2, y2 }, this.svg);
      for (const v of yTicks) {
        const at = this.sy(v);
        if (at < top - 1 || at > bottom + 1) continue;
        line(v === 0 ? "zero" : "gridline", left, at, right, at);
        draw("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, this.svg, label(v));
      }
      const room = Math.max(2, Math.floor((right - left) / 75));
      const [low, high] = this.domain.x;
      const { ticks, whole } = this.spec.x;
      let xTicks = ticks ? ticks.filter((v) => v >= low && v <= high) : (this.log.x ? logTicks : linearTicks)(low, high, room, whole);
      if (whole) xTicks = xTicks.filter((v) => v >= 1);
      for (const v of xTicks) {
        const at = this.sx(v);
        if (this.spec.equal) line("gridline", at, top, at, bottom);
        line("axis", at, bottom, at, bottom + 4);
        draw("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, this.svg, show(v, 4));
      }
      line("axis", left, bottom, right, bottom);
      draw("text", { x: 0, y: 13 }, this.svg, this.spec.y.label);
      draw("text", { x: right, y: bottom + 37, "text-anchor": "end" }, this.svg, this.spec.x.label);
    }

    series(series, k, layer) {
      const group = draw("g", {}, layer);
      const bars = Boolean(series.low && series.high);
      const shift = bars ? (k - (this.shown.length - 1) / 2) * 7 : 0;
      const fixed = (v) => Math.round(v * 10) / 10;
      // Past a few times the plot's size browsers lose precision; the clip hides the rest anyway.
      const limit = (v) => fixed(clamp(v, -4000, 8000));
      const at = (i) => [limit(this.sx(series.x[i]) + shift), limit(this.sy(series.y[i]))];
      const ends = [];
      let path = "";
      const marks = [];
      let pen = false;
      for (let i = 0; i < series.x.length; i++) {
        if (!this.fits(series, i)) {
          pen = false;
          continue;
        }
        const [x, y] = at(i);
        path += `${pen ? "L" : "M"}${x},${y}`;
        pen = true;
        if (!this.within(series, i)) continue;
        marks.push(MARKS[series.mark || 0](x, y, series.faint ? 3 : series.mark === CROSS ? 4.5 : 4));
        if (bars && real(series.low[i]) && real(series.high[i])) {
          const low = this.log.y && series.low[i] <= 0 ? this.box.bottom + 20 : limit(this.sy(series.low[i]));
          ends.push(`M${x},${low}V${limit(this.sy(series.high[i]))}`);
        }
      }
      if (ends.length) this.stroke(draw("path", { d: ends.join("") }, group), { ink: series.ink });
      if (series.style !== "dots" && path) this.stroke(draw("path", { d: path, class: "line" }, group), series);
      const lone = series.style === "line" && series.x.length === 1;
      // Faint dots lie over each other; drawn one by one their density shows.
      const dots = series.faint ? marks : [marks.join("")];
      if (series.style !== "line" || lone) for (const d of dots) paint(draw("path", { d, class: "marks" }, group), series);
      series.shift = shift;
    }

    within(series, i) {
      const { left, right, top, bottom } = this.box;
      const x = this.sx(series.x[i]);
      const y = this.sy(series.y[i]);
      return x >= left - 6 && x <= right + 6 && (!this.spec.equal || (y >= top - 6 && y <= bottom + 6));
    }

    say() {
      let lost = 0;
      let cut = 0;
      for (const s of this.shown)
        for (let i = 0; i < s.x.length; i++) {
          if (real(s.y[i]) && this.log.y && s.y[i] <= 0) lost++;
          else if (real(s.y[i]) && real(this.spec.y.floor) && !this.whole && s.y[i] < this.spec.y.floor) cut++;
        }
      const first = this.figure === document.querySelector("figure[data-chart]");
      const drag = window.matchMedia("(pointer: coarse)").matches ? "Tap a point for its values; drag sideways to zoom." : "Hover for values; drag to zoom, double-click to reset.";
      const notes = first ? [drag] : [];
      if (lost) notes.push(`${lost} values of 0 or less have no place on a log axis.`);
      if (cut) notes.push(`${cut} means below ${show(this.spec.y.floor)} are cut off; “whole range” shows them.`);
      this.hint.textContent = notes.join(" ");
      this.reset.disabled = !this.view;
    }

    // The point nearest to a place on the screen: by x alone, or on a map by distance.
    nearest(px, py) {
      let best = null;
      for (const series of this.shown)
        for (let i = 0; i < series.x.length; i++) {
          if (!this.fits(series, i) || !this.within(series, i)) continue;
          const dx = this.sx(series.x[i]) - px;
          const dy = this.sy(series.y[i]) - py;
          const far = this.spec.equal ? Math.hypot(dx, dy) : Math.abs(dx) + 0.001 * Math.abs(dy);
          if (!best || far < best.far) best = { series, i, far };
        }
      return best && (!this.spec.equal || best.far <= NEAR) ? best : null;
    }

    point(series, i) {
      this.at = { series, i };
      this.over.replaceChildren();
      this.tip.replaceChildren();
      const x = this.sx(series.x[i]);
      const ring = (s, j) => {
        const mark = draw("circle", { cx: this.sx(s.x[j]) + (s.shift || 0), cy: clamp(this.sy(s.y[j]), this.box.top, this.box.bottom), r: 6, fill: "none", "stroke-width": 2 }, this.over);
        mark.style.stroke = `var(--ink${s.ink})`;
      };
      const row = (s, text) => {
        const line = html("div", {}, this.tip);
        html("i", {}, line).style.background = `var(--ink${s.ink})`;
        html("span", {}, line, text);
      };
      let name = series.names && series.names[i];
      if (this.spec.equal) {
        html("b", {}, this.tip, name || series.name);
        if (series.notes) row(series, series.notes[i]);
        html("span", {}, this.tip, `at ${show(series.x[i], 4)}, ${show(series.y[i], 4)}`);
        ring(series, i);
      } else {
        draw("line", { class: "cursor", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }, this.over);
        const { unit } = this.spec.x;
        const { percent } = this.spec.y;
        const head = html("b", {}, this.tip);
        for (const s of this.shown) {
          let j = -1;
          for (let q = 0; q < s.x.length; q++)
            if (this.fits(s, q) && (j < 0 || Math.abs(this.sx(s.x[q]) - x) < Math.abs(this.sx(s.x[j]) - x))) j = q;
          if (s === series) j = i;
          if (j < 0 || Math.abs(this.sx(s.x[j]) - x) > NEAR) continue;
          const value = (v) => show(v, this.spec.y.digits || 6, percent);
          const span = s.low && real(s.low[j]) ? ` (${value(s.low[j])} to ${value(s.high[j])})` : "";
          const where = s.x[j] === series.x[i] ? "" : `, at ${show(s.x[j])}`;
          row(s, `${s.name}: ${value(s.y[j])}${span}${where}`);
          ring(s, j);
          if (!where) name ||= s.names && s.names[j];
        }
        head.textContent = `${unit} ${show(series.x[i])}${name ? ` · ${name}` : ""}`;
      }
      this.tip.hidden = false;
      const right = x > (this.box.left + this.box.right) / 2;
      const ratio = this.plot.clientWidth / this.width;
      const top = this.spec.equal ? clamp(this.sy(series.y[i]) - 20, this.box.top, this.box.bottom - 60) : this.box.top;
      this.tip.style.top = `${top * ratio}px`;
      const left = right ? x * ratio - this.tip.offsetWidth - 14 : x * ratio + 14;
      this.tip.style.left = `${clamp(left, 0, Math.max(0, this.plot.clientWidth - this.tip.offsetWidth))}px`;
    }

    hide() {
      this.at = null;
      this.tip.hidden = true;
      if (this.over) this.over.replaceChildren();
    }

    zoom(view) {
      this.view = view;
      this.hide();
      this.render();
    }

    // Zoom by a factor about the point at hand, or move by a share of what is seen.
    nudge(factor, shift = 0) {
      const part = (axis, s) => {
        const [a, b] = this.domain[axis].map(s).sort((p, q) => p - q);
        const middle = this.at && factor !== 1 ? s(this.at.series[axis][this.at.i]) : (a + b) / 2;
        const from = middle - (middle - a) * factor + (axis === "x" ? shift : 0) * (b - a);
        return [from, from + (b - a) * factor].map(s.back).sort((p, q) => p - q);
      };
      const at = this.at;
      this.view = { x: part("x", this.sx), y: this.spec.equal ? part("y", this.sy) : null };
      this.render();
      if (at && this.within(at.series, at.i)) this.point(at.series, at.i);
      else this.hide();
    }

    place(event) {
      const frame = this.svg.getBoundingClientRect();
      const ratio = this.width / frame.width;
      return [(event.clientX - frame.left) * ratio, (event.clientY - frame.top) * ratio];
    }

    listen() {
      const { svg } = this;
      svg.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        this.drag = { from: this.place(event), moved: false };
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        const [x, y] = this.place(event);
        if (!this.drag) {
          const found = this.nearest(x, y);
          return found ? this.point(found.series, found.i) : this.hide();
        }
        const { left, right, top, bottom } = this.box;
        const [x0, y0] = this.drag.from;
        this.drag.moved ||= Math.hypot(x - x0, y - y0) > 6;
        if (!this.drag.moved) return;
        this.hide();
        const [a, b] = [clamp(Math.min(x, x0), left, right), clamp(Math.max(x, x0), left, right)];
        const [c, d] = this.spec.equal ? [clamp(Math.min(y, y0), top, bottom), clamp(Math.max(y, y0), top, bottom)] : [top, bottom];
        this.drag.box = [a, b, c, d];
        draw("rect", { class: "brush", x: a, y: c, width: b - a, height: d - c }, this.over);
      });
      svg.addEventListener("pointerup", (event) => {
        const drag = this.drag;
        this.drag = null;
        if (!drag) return;
        if (!drag.moved) {
          const found = this.nearest(...this.place(event));
          return found ? this.point(found.series, found.i) : this.hide();
        }
        this.over.replaceChildren();
        if (!drag.box) return;
        const [a, b, c, d] = drag.box;
        if (b - a < 6 || d - c < 6) return;
        this.zoom({ x: [this.sx.back(a), this.sx.back(b)], y: this.spec.equal ? [this.sy.back(d), this.sy.back(c)] : null });
      });
      svg.addEventListener("pointercancel", () => {
        this.drag = null;
        this.hide();
      });
      // A finger leaves as soon as it is lifted; what it pointed at stays.
      svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !this.drag && this.hide());
      svg.addEventListener("dblclick", () => this.zoom(null));
      svg.addEventListener("blur", () => this.hide());
      svg.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !this.key(event)) return;
        event.preventDefault();
      });
    }

    key(event) {
      if (event.key === "Escape" || event.key === "0") this.zoom(null);
      else if (event.key === "+" || event.key === "=") this.nudge(0.5);
      else if (event.key === "-") this.nudge(2);
      else if (event.shiftKey && event.key === "ArrowLeft") this.nudge(1, -0.2);
      else if (event.shiftKey && event.key === "ArrowRight") this.nudge(1, 0.2);
      else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) this.walk(event.key);
      else if (["ArrowUp", "ArrowDown"].includes(event.key)) this.change(event.key === "ArrowUp" ? -1 : 1);
      else return false;
      return true;
    }

    walk(key) {
      const series = this.at ? this.at.series : this.shown[0];
      if (!series) return;
      const good = series.x.map((_, i) => i).filter((i) => this.fits(series, i) && this.within(series, i));
      if (this.spec.equal) good.sort((a, b) => series.x[a] - series.x[b]);
      if (!good.length) return;
      const now = this.at ? good.indexOf(this.at.i) : -1;
      const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: good.length - 1 }[key];
      this.point(series, good[clamp(next, 0, good.length - 1)]);
    }

    change(step) {
      const { shown } = this;
      if (!shown.length) return;
      const now = this.at ? shown.indexOf(this.at.series) : -step;
      const series = shown[(now + step + shown.length) % shown.length];
      const x = this.at ? this.at.series.x[this.at.i] : series.x[0];
      const good = series.x.map((_, i) => i).filter((i) => this.fits(series, i) && this.within(series, i));
      if (good.length) this.point(series, good.reduce((a, b) => (Math.abs(series.x[b] - x) < Math.abs(series.x[a] - x) ? b : a)));
    }
  }

  function theme() {
    const button = document.getElementById("theme");
    const names = ["auto", "light", "dark"];
    const store = (value) => {
      try {
        return value === undefined ? localStorage.getItem("fmrl-theme") : localStorage.setItem("fmrl-theme", value);
      } catch {
        return null; // a page opened from a file may have no storage
      }
    };
    const set = (name) => {
      if (name === "auto") document.documentElement.removeAttribute("data-theme");
      else document.documentElement.setAttribute("data-theme", name);
      button.textContent = `Theme: ${name}`;
    };
    let now = Math.max(0, names.indexOf(store()));
    set(names[now]);
    button.hidden = false;
    button.addEventListener("click", () => {
      now = (now + 1) % names.length;
      set(names[now]);
      store(names[now]);
    });
  }

  theme();
  for (const spec of JSON.parse(document.getElementById("data").textContent)) {
    const figure = document.querySelector(`figure[data-chart="${spec.id}"]`);
    if (figure) new Chart(figure, spec);
  }
  const folded = () => [...document.querySelectorAll("details:not([open])")];
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = folded();
    for (const part of opened) part.open = true;
  });
  addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
})();
