// A chart of lines or dots that is drawn anew as numbers come: series {name, ink, dash, dots}. Its height is fixed, so nothing on the page moves.
class Lines {
  constructor(parent, label, { x, log = false, series }) {
    Object.assign(this, { x, log, series, label, values: series.map(() => []), most: 1, due: false });
    this.figure = html("figure", { class: "lines" }, parent);
    html("p", { class: "chart-title" }, this.figure, label);
    this.svg = draw("svg", { role: "img", "aria-label": label }, html("div", { class: "plot" }, this.figure));
    const legend = html("ul", { class: "key" }, this.figure);
    for (const s of series) {
      const item = html("li", {}, legend);
      const swatch = draw("svg", { width: 22, height: 10, viewBox: "0 0 22 10", "aria-hidden": true }, item);
      this.mark(swatch, s, "M1,5h20", 11, 5);
      html("span", {}, item, s.name);
    }
    new ResizeObserver(() => this.render()).observe(this.svg.parentNode);
  }

  mark(parent, s, path, x, y) {
    if (s.dots) return draw("circle", { cx: x, cy: y, r: 2.6, style: `fill:var(--ink${s.ink})` }, parent);
    const look = { d: path, fill: "none", "stroke-width": s.dash ? 1.8 : 2.2, "stroke-linejoin": "round", style: `stroke:var(--ink${s.ink})` };
    return draw("path", { ...look, ...(s.dash ? { "stroke-dasharray": DASHES[s.dash] } : {}) }, parent);
  }

  // values: for every series a list of numbers, the first at `first`.
  update(values, most, first = 1) {
    Object.assign(this, { values, most, first });
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => this.render());
  }

  render() {
    this.due = false;
    const [width, height] = [this.svg.parentNode.clientWidth, this.svg.parentNode.clientHeight];
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.textContent = "";
    const found = this.values.flat().filter((v) => real(v) && (!this.log || v > 0));
    const [low, high] = found.length ? this.range(Math.min(...found), Math.max(...found)) : [this.log ? 0.01 : 0, 1];
    const [left, right, top, bottom] = [46, width - 8, 8, height - 34];
    const from = this.first ?? 1;
    const atX = scale(false, [from, Math.max(from + 1, this.most)], left, right);
    const atY = scale(this.log, [low, high], bottom, top);
    for (const v of (this.log ? logTicks : linearTicks)(low, high, 4, false)) {
      draw("line", { class: "gridline", x1: left, x2: right, y1: atY(v), y2: atY(v) }, this.svg);
      draw("text", { x: left - 6, y: atY(v) + 4, "text-anchor": "end" }, this.svg, show(v, 2));
    }
    for (const v of linearTicks(from, Math.max(from + 1, this.most), Math.min(6, width / 70), true))
      draw("text", { x: atX(v), y: bottom + 15, "text-anchor": "middle" }, this.svg, show(v, 3));
    draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }, this.svg);
    draw("text", { x: right, y: height - 4, "text-anchor": "end" }, this.svg, this.x);
    this.series.forEach((s, i) => {
      const points = this.values[i].map((v, t) => [t + from, v]).filter(([, v]) => real(v) && (!this.log || v > 0));
      const at = points.map(([t, v]) => [atX(t), atY(clamp(v, low, high))].map((p) => Math.round(10 * p) / 10));
      if (s.dots) for (const [px, py] of at) this.mark(this.svg, s, "", px, py);
      else if (at.length) {
        this.mark(this.svg, s, `M${at.map((p) => p.join()).join("L")}`);
        draw("circle", { cx: at.at(-1)[0], cy: at.at(-1)[1], r: 3, style: `fill:var(--ink${s.ink})` }, this.svg);
      }
    });
  }

  range(low, high) {
    if (this.log) return [Math.max(low, high * 1e-5) * 0.8, high * 1.3];
    return [Math.min(0, low), high > 0 ? high * 1.08 : 1];
  }
}
