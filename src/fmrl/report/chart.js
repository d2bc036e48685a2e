// Chart: axes, series, legend and switches of one figure, drawn as SVG from its spec. hide, point and zoom come with Explorer.
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
    const box = { left: 50, right: width - 12, top: 28, bottom: height - (this.spec.x.under ? 60 : 44) };
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
    const { ticks, whole, under } = this.spec.x;
    let xTicks = ticks ? ticks.filter((v) => v >= low && v <= high) : (this.log.x ? logTicks : linearTicks)(low, high, room, whole);
    if (whole) xTicks = xTicks.filter((v) => v >= 1);
    for (const v of xTicks) {
      const at = this.sx(v);
      if (this.spec.equal) line("gridline", at, top, at, bottom);
      line("axis", at, bottom, at, bottom + 4);
      draw("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, this.svg, show(v, 4));
      if (under) draw("text", { x: at, y: bottom + 34, "text-anchor": "middle" }, this.svg, under[ticks.indexOf(v)]);
    }
    line("axis", left, bottom, right, bottom);
    draw("text", { x: 0, y: 13 }, this.svg, this.spec.y.label);
    draw("text", { x: right, y: bottom + (under ? 53 : 37), "text-anchor": "end" }, this.svg, this.spec.x.label);
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
    if (lost) notes.push(`Not on a log axis: ${lost} value${lost > 1 ? "s" : ""} of 0 or less.`);
    if (cut) notes.push(`${cut} ${cut > 1 ? "means" : "mean"} below ${show(this.spec.y.floor)} ${cut > 1 ? "are" : "is"} cut off; see “whole range”.`);
    this.hint.textContent = notes.join(" ");
    this.reset.disabled = !this.view;
  }
}
