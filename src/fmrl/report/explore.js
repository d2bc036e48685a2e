// Explorer: a chart one can point at, zoom and walk along, with mouse, finger or keys.
const NEAR = 28; // pixels within which a point counts as pointed at

class Explorer extends Chart {
  constructor(figure, spec) {
    super(figure, spec);
    this.listen();
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
