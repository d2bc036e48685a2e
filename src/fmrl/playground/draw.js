// Draw: the reader's drawings, the worker that adapts both networks to them, and what they answer.
const KINDS = ["A", "B", "C", "D", "E"];
const STEPS = 30;
const STARTS = { learned: { ink: 6, name: "learned start φ" }, random: { ink: 5, dash: 1, name: "random start" } };

class Draw {
  constructor(root, weights) {
    Object.assign(this, { root, weights, ways: 3, shots: 1, seed: 1, id: 0, shown: null, curves: null, asked: false });
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.worker = this.start();
    const most = Math.min(KINDS.length, weights.ways);
    for (let n = 3; n <= most; n++) html("option", { value: n }, this.find("ways"), String(n));
    for (const name of ["ways", "shots"])
      this.find(name).addEventListener("change", (e) => {
        this[name] = Number(e.target.value);
        this.lay();
        this.example();
      });
    this.find("example").addEventListener("click", () => this.example(1 + Math.floor(1e6 * Math.random())));
    this.find("clear").addEventListener("click", () => this.all.forEach((pad) => pad.set([])));
    this.find("again").addEventListener("click", () => {
      this.seed += 1;
      this.adapt();
    });
    const series = Object.values(STARTS).map((s) => ({ ...s }));
    this.chart = new Lines(this.find("curve"), "Error on your own drawings (log-loss)", { x: "step", series });
    this.query = new Pad(this.find("query"), "The drawing to be recognised", () => this.ask());
    this.lay();
    this.example();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.all.forEach((pad) => pad.paint()));
    document.getElementById("theme").addEventListener("click", () => this.all.forEach((pad) => pad.paint()));
  }

  start() {
    const source = document.getElementById("worker").textContent;
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const unpack = (text) => text && Float64Array.from(new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
    worker.postMessage({ weights: { ...this.weights, theta: unpack(this.weights.theta), second: unpack(this.weights.second) } });
    worker.onmessage = ({ data }) => data.id === this.id && this.hear(data);
    worker.onerror = () => (this.find("state").textContent = "This browser does not run the network.");
    return worker;
  }

  get all() {
    return [...this.pads.flat(), this.query];
  }

  // Pads and bars for this many classes and drawings each.
  lay() {
    const kinds = this.find("kinds");
    kinds.textContent = "";
    kinds.classList.toggle("several", this.shots > 1);
    this.pads = KINDS.slice(0, this.ways).map((name, c) => {
      const box = html("div", { class: "kind", style: `--mine: var(--ink${c})` }, kinds);
      html("h3", {}, box, name);
      const change = (pad, done) => done && this.adapt();
      return Array.from({ length: this.shots }, (_, s) => new Pad(box, `Drawing ${s + 1} of ${name}`, change));
    });
    for (const start of Object.keys(STARTS)) {
      const list = this.find(`${start}-shares`);
      list.textContent = "";
      KINDS.slice(0, this.ways).forEach((name, c) => {
        const row = html("li", { style: `--mine: var(--ink${c})` }, list);
        html("b", {}, row, name);
        html("i", {}, html("span", { class: "track" }, row));
        html("output", {}, row, "–");
      });
    }
    this.measured();
  }

  example(hand = 3) {
    this.id += 1;
    const first = hand === 3 ? 0 : hand % SIGNS.length;
    const sign = (c) => (c + first) % SIGNS.length;
    const change = this.all.map((pad) => pad.change);
    this.all.forEach((pad) => (pad.change = () => {}));
    this.pads.forEach((row, c) => row.forEach((pad, s) => pad.set(drawnBy(hand + 1 + c + 7 * s, sign(c)))));
    this.query.set(drawnBy(hand + 40, sign(hand % this.ways)));
    this.all.forEach((pad, i) => (pad.change = change[i]));
    this.adapt();
  }

  // What the worker is told: pictures and labels of what has been drawn.
  adapt() {
    const drawn = this.pads.flatMap((row, c) => row.filter((p) => p.strokes.length).map((p) => [pictureOf(p.strokes), c]));
    const missing = KINDS.filter((_, c) => c < this.ways && !this.pads[c].some((p) => p.strokes.length));
    this.id += 1;
    this.shown = null;
    this.curves = { learned: [], random: [] };
    if (missing.length) {
      this.worker.postMessage({ stop: true });
      this.find("state").textContent = `Draw ${missing.join(", ")} to begin.`;
      this.blank();
      return;
    }
    const images = new Float64Array(drawn.length * SIDE * SIDE);
    drawn.forEach(([picture], n) => images.set(picture, n * SIDE * SIDE));
    const query = this.asking();
    this.sent = { images, labels: drawn.map(([, c]) => c), query };
    this.worker.postMessage({ id: this.id, ways: this.ways, seed: this.seed, steps: STEPS, ...this.sent });
  }

  asking() {
    return this.query.strokes.length ? pictureOf(this.query.strokes) : null;
  }

  // A query is asked again as it grows, once a frame.
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (!this.sent) return;
      this.sent.query = this.asking();
      this.worker.postMessage({ query: this.sent.query });
    });
  }

  hear(data) {
    this.shown = data;
    for (const start of Object.keys(STARTS)) this.curves[start] = data[start].losses;
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      if (this.shown) this.render(this.shown);
    });
  }

  render({ step, steps, learned, random }) {
    this.find("state").textContent = step < steps ? `Learning: step ${step} of ${steps}` : `Done: ${steps} steps`;
    this.chart.update(Object.keys(STARTS).map((s) => this.curves[s]), STEPS, 0);
    for (const [start, { shares }] of Object.entries({ learned, random })) {
      const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
      [...this.find(`${start}-shares`).children].forEach((row, c) => {
        row.classList.toggle("best", c === best);
        row.querySelector("i").style.transform = `scaleX(${shares ? shares[c] : 0})`;
        row.querySelector("output").textContent = shares ? `${Math.round(100 * shares[c])} %` : "–";
      });
      this.find(`${start}-answer`).textContent = shares ? `says ${KINDS[best]}` : "waits for a drawing";
    }
  }

  blank() {
    this.sent = null;
    this.chart.update([[], []], STEPS, 0);
    for (const start of Object.keys(STARTS)) {
      for (const row of this.find(`${start}-shares`).children) {
        row.classList.remove("best");
        row.querySelector("i").style.transform = "scaleX(0)";
        row.querySelector("output").textContent = "–";
      }
      this.find(`${start}-answer`).textContent = "waits for your drawings";
    }
  }

  // What the record of the checkpoint says of characters it never saw.
  measured() {
    const row = this.weights.accuracy.find((r) => r.ways === this.ways && r.shots === this.shots);
    const share = (v) => `${(100 * v).toFixed(1)} %`;
    this.find("measured").textContent = row
      ? `Measured on ${row.tests.toLocaleString("en")} tasks of ${row.ways} characters that neither network had seen, ` +
        `${row.shots === 1 ? "one drawing" : `${row.shots} drawings`} each: ${share(row.learned)} right from the learned start, ${share(row.random)} from a random one.`
      : "";
  }
}
