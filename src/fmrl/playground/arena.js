// The arena: tasks as points in the ball, the starting point φ, the circle D around it, and the path of the task that is looked at.
class Arena {
  // zoom: how much larger than life the first two coordinates are drawn.
  constructor(parent, label, change, zoom = 1) {
    Object.assign(this, { change, zoom, points: [], chosen: -1, pointer: null });
    const help = "Drag a point, or press where there is none to add a task. With keys: Page Up and Page Down choose a task, arrows move it, Enter adds one, Delete removes it.";
    this.svg = draw("svg", { class: "arena", viewBox: "-1.1 -1.1 2.2 2.2", tabindex: 0, role: "application", "aria-roledescription": "map of tasks" }, parent);
    this.svg.setAttribute("aria-label", `${label}. ${help}`);
    draw("circle", { class: "ball", r: zoom }, this.svg);
    draw("path", { class: "axis", d: "M-0.03,0h0.06M0,-0.03v0.06" }, this.svg);
    this.guess = draw("circle", { class: "guess" }, this.svg);
    this.trail = draw("path", { class: "trail" }, this.svg);
    this.layer = draw("g", {}, this.svg);
    this.path = draw("path", { class: "path" }, this.svg);
    this.phi = draw("path", { class: "phi" }, this.svg);
    this.svg.addEventListener("pointerdown", (e) => this.press(e));
    this.svg.addEventListener("pointermove", (e) => this.move(e));
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, () => (this.pointer = null));
    this.svg.addEventListener("keydown", (e) => this.key(e));
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return this.back([(2.2 * (event.clientX - box.left)) / box.width - 1.1, 1.1 - (2.2 * (event.clientY - box.top)) / box.height]);
  }

  // Where a point is drawn, and the point that is drawn at a place inside the circle.
  place([x, y]) {
    return [this.zoom * x, this.zoom * y];
  }

  back(place) {
    return intoBall(place, 0.98).map((v) => v / this.zoom);
  }

  press(event) {
    if (this.pointer !== null || event.button > 0) return;
    event.preventDefault();
    this.svg.focus({ preventScroll: true });
    this.pointer = event.pointerId;
    if (event.isTrusted) this.svg.setPointerCapture(event.pointerId);
    const to = this.at(event);
    const reach = (event.pointerType === "touch" ? 0.11 : 0.06) / this.zoom;
    let best = -1;
    this.points.forEach((p, i) => {
      const far = Math.hypot(p[0] - to[0], p[1] - to[1]);
      if (far <= reach && (best < 0 || far < Math.hypot(this.points[best][0] - to[0], this.points[best][1] - to[1]))) best = i;
    });
    this.change(best < 0 ? { add: to } : { choose: best });
  }

  move(event) {
    if (event.pointerId === this.pointer && this.chosen >= 0) this.change({ choose: this.chosen, to: this.at(event) });
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const step = steps[event.key];
    const last = this.points.length - 1;
    if (step && this.chosen >= 0)
      this.change({ choose: this.chosen, to: this.back(this.place(this.points[this.chosen]).map((v, i) => v + 0.04 * step[i])) });
    else if (event.key === "PageDown" || (step && last >= 0)) this.change({ choose: clamp(this.chosen + 1, 0, last) });
    else if (event.key === "PageUp") this.change({ choose: clamp(this.chosen < 0 ? last : this.chosen - 1, 0, last) });
    else if (event.key === "Enter") this.change({ add: [0, 0] });
    else if (event.key === "Delete" && this.chosen >= 0) this.change({ remove: this.chosen });
    else return;
    event.preventDefault();
  }

  // points, names, the rounds of Algorithm 2 on them, and which one is looked at.
  render(points, rounds, chosen) {
    Object.assign(this, { points, chosen });
    while (this.layer.childElementCount > points.length) this.layer.lastChild.remove();
    while (this.layer.childElementCount < points.length) draw("circle", { r: 0.022 }, this.layer);
    const at = (p) => this.place(p).map((v, i) => (i ? -v : v).toFixed(4)).join();
    points.forEach((p, t) => {
      const [x, y] = this.place(p);
      const dot = this.layer.children[t];
      const age = points.length - t;
      put(dot, { cx: x.toFixed(4), cy: (-y).toFixed(4), class: t === chosen ? "task chosen" : "task", "fill-opacity": clamp(1.1 - age / 60, 0.3, 1).toFixed(2) });
    });
    const seen = chosen >= 0 ? chosen : points.length - 1;
    const round = rounds[seen];
    this.path.setAttribute("d", round ? `M${round.actions.map(at).join("L")}` : "");
    this.trail.setAttribute("d", rounds.length ? `M${[...rounds.map((r) => r.phi), rounds.at(-1).after].map(at).join("L")}` : "");
    const phi = chosen >= 0 && round ? round.phi : rounds.length ? rounds.at(-1).after : [0, 0];
    const guess = chosen >= 0 && round ? round.guess : rounds.length ? rounds.at(-1).next : 0;
    const [x, y] = this.place([phi[0], -phi[1]]);
    this.phi.setAttribute("d", `M${x},${y - 0.055}l0.05,0.09h-0.1z`);
    put(this.guess, { cx: x, cy: y, r: this.zoom * Math.SQRT2 * guess });
  }
}
