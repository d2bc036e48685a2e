// A square to draw on, by mouse, pen, touch or keys. It holds strokes in the unit square; change(pad, done) is called as they grow.
const PAD_HELP = "Draw here. With keys: arrows move the pen, Space lowers or lifts it, Backspace takes the last stroke back, Delete clears.";

class Pad {
  constructor(parent, label, change) {
    Object.assign(this, { strokes: [], change, pointer: null, pen: null, down: false });
    const frame = html("div", { class: "pad" }, parent);
    this.canvas = html("canvas", { tabindex: 0, role: "application", "aria-roledescription": "drawing pad" }, frame);
    this.canvas.setAttribute("aria-label", `${label}. ${PAD_HELP}`);
    this.wipe = html("button", { type: "button", class: "wipe", "aria-label": `Clear: ${label}`, title: "Clear" }, frame, "×");
    this.wipe.addEventListener("click", () => this.set([]));
    const on = (name, call) => this.canvas.addEventListener(name, call);
    on("pointerdown", (e) => this.press(e));
    on("pointermove", (e) => this.move(e));
    for (const name of ["pointerup", "pointercancel"]) on(name, (e) => this.lift(e));
    on("keydown", (e) => this.key(e));
    on("blur", () => this.rest());
    new ResizeObserver(() => this.paint()).observe(this.canvas);
  }

  set(strokes) {
    this.strokes = strokes;
    this.pen = null;
    this.down = false;
    this.paint();
    this.change(this, true);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((v) => clamp(v, 0, 1));
  }

  press(event) {
    if (this.pointer !== null || event.button > 0) return;
    this.pointer = event.pointerId;
    if (event.isTrusted) this.canvas.setPointerCapture(event.pointerId);
    this.strokes.push([this.at(event)]);
    this.rest();
    this.paint();
    this.change(this, false);
  }

  move(event) {
    if (event.pointerId !== this.pointer) return;
    const stroke = this.strokes.at(-1);
    const seen = event.getCoalescedEvents ? event.getCoalescedEvents() : [];
    for (const one of seen.length ? seen : [event]) {
      const to = this.at(one);
      const last = stroke.at(-1);
      if (Math.hypot(to[0] - last[0], to[1] - last[1]) > 0.006) stroke.push(to);
    }
    this.paint();
    this.change(this, false);
  }

  lift(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = null;
    this.change(this, true);
  }

  key(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const step = steps[event.key];
    if (event.key === "Delete" || event.key === "Backspace") this.set(event.key === "Delete" ? [] : this.strokes.slice(0, -1));
    else if (event.key === " ") {
      this.pen ??= [0.5, 0.5];
      this.down = !this.down;
      if (this.down) this.strokes.push([[...this.pen]]);
      this.paint();
      this.change(this, !this.down);
    } else if (step) {
      this.pen = (this.pen ?? [0.5, 0.5]).map((v, i) => clamp(v + 0.06 * step[i], 0, 1));
      if (this.down) this.strokes.at(-1).push([...this.pen]);
      this.paint();
      if (this.down) this.change(this, false);
    } else return;
    event.preventDefault();
  }

  rest() {
    if (this.down) this.change(this, true);
    this.pen = null;
    this.down = false;
    this.paint();
  }

  paint() {
    const size = Math.round(this.canvas.clientWidth * (window.devicePixelRatio || 1));
    if (!size) return;
    if (this.canvas.width !== size) this.canvas.width = this.canvas.height = size;
    const style = getComputedStyle(this.canvas);
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, size, size);
    Object.assign(pen, { lineWidth: size * 0.045, lineCap: "round", lineJoin: "round", strokeStyle: style.color, fillStyle: style.color });
    for (const stroke of this.strokes) {
      pen.beginPath();
      pen.moveTo(...stroke[0].map((v) => v * size));
      for (const p of stroke.length > 1 ? stroke.slice(1) : stroke) pen.lineTo(...p.map((v) => v * size));
      pen.stroke();
    }
    this.wipe.hidden = !this.strokes.length;
    if (!this.pen) return;
    pen.beginPath();
    pen.arc(this.pen[0] * size, this.pen[1] * size, size * 0.05, 0, 7);
    pen.lineWidth = size * 0.015;
    this.down ? pen.fill() : pen.stroke();
  }
}
