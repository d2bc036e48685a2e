// Watch: the arena, its sliders, the three methods on its points, the charts and the sentence that says what they show.
const LOOK = [
  { name: "Algorithm 2", ink: 0 },
  { name: "last task’s solution (strawman)", ink: 1 },
  { name: "each task alone", ink: 2 },
  { name: "proved bound on Algorithm 2", ink: 5, dash: 1 },
];
const MOST_TASKS = 200;
const RADIUS = 1;

class Watch {
  // table: points and names of a run; without one tasks come from a stream.
  constructor(root, table) {
    Object.assign(this, { root, items: [], chosen: -1, timer: null, table });
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.settings = { spread: 0.12, drift: 0, clusters: 1, rounds: 16, epsilon: 0.1, gamma: 1.1, seed: 1 };
    const label = table ? "Tasks of your table" : "Tasks of the stream";
    this.arena = new Arena(this.find("arena"), label, (what) => this.touch(what), table?.zoom);
    this.tar = new Lines(this.find("charts"), "Average regret so far (TAR), on a log scale", { x: "tasks seen", log: true, series: LOOK });
    const each = [...LOOK.slice(0, 3).map((s) => ({ ...s, dots: true })), { ...LOOK[3], name: "bound on Algorithm 2, this task" }];
    this.each = new Lines(this.find("charts"), "Regret of each task, on a log scale", { x: "task", log: true, series: each });
    for (const input of root.querySelectorAll("input[type=range]")) {
      const name = input.dataset.setting;
      input.addEventListener("input", () => {
        this.settings[name] = Number(input.value);
        this.play();
      });
    }
    this.button("next", () => this.more(1));
    this.button("run", () => this.toggle());
    this.button("reset", () => this.reset());
    this.button("other", () => {
      this.settings.seed += 1;
      this.play();
    });
    this.reset(table ? table.points.length : 24);
  }

  button(name, call) {
    this.find(name)?.addEventListener("click", call);
  }

  reset(count = 0) {
    this.stop();
    const all = this.table ? this.table.points.length : count;
    this.items = Array.from({ length: all }, (_, n) => ({ n }));
    this.chosen = -1;
    this.play();
  }

  more(count) {
    const used = this.items.map((item) => item.n ?? -1);
    for (let i = 0; i < count && this.items.length < MOST_TASKS; i++) this.items.push({ n: Math.max(-1, ...used) + 1 + i });
    this.chosen = -1;
    this.play();
    if (this.items.length >= MOST_TASKS) this.stop();
  }

  toggle() {
    if (this.timer) return this.stop();
    if (this.items.length >= MOST_TASKS) this.reset();
    this.timer = setInterval(() => this.more(1), 140);
    this.find("run").textContent = "Pause";
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    if (this.find("run")) this.find("run").textContent = "Let tasks arrive";
  }

  touch({ choose, to, add, remove }) {
    // The pointer knows two coordinates; the others stay, or are those of the starting point.
    const whole = ([x, y], rest) => intoBall([x, y, ...rest.slice(2)], 0.98);
    if (add && this.items.length < MOST_TASKS) {
      this.items.push({ at: whole(add, this.rounds[0].at(-1)?.after ?? [0, 0]) });
      this.chosen = this.items.length - 1;
    }
    if (choose !== undefined) this.chosen = choose;
    if (to) this.items[choose] = { ...this.items[choose], at: whole(to, this.points[choose]) };
    if (remove !== undefined) {
      this.items.splice(remove, 1);
      this.chosen = Math.min(remove, this.items.length - 1);
    }
    this.play();
  }

  where(item) {
    if (item.at) return item.at;
    return this.table ? this.table.points[item.n] : streamPoint(item.n, this.settings, RADIUS);
  }

  nameOf(t) {
    const { n } = this.items[t];
    return this.table && n !== undefined ? this.table.names[n] : `task ${t + 1}`;
  }

  play() {
    this.points = this.items.map((item) => this.where(item));
    const how = { ...this.settings, radius: RADIUS };
    this.rounds = METHODS.map((m) => playAll(m, this.points, how));
    this.arena.render(this.points, this.rounds[0], this.chosen);
    const column = (key) => this.rounds.map((rows) => rows.map((r) => r[key]));
    const most = Math.max(10, this.items.length);
    this.tar.update([...column("tar"), this.rounds[0].map((r) => r.barBound)], most);
    this.each.update([...column("regret"), this.rounds[0].map((r) => r.bound)], most);
    this.say();
  }

  say() {
    for (const input of this.root.querySelectorAll("input[type=range]"))
      input.nextElementSibling.textContent = show(this.settings[input.dataset.setting], 3);
    const [mine, straw, single] = this.rounds.map((rows) => rows.at(-1));
    const set = (name, text) => (this.find(name).textContent = text);
    set("count", String(this.items.length));
    set("tar", mine ? show(mine.tar, 3) : "–");
    set("bound", mine ? show(mine.barBound, 3) : "–");
    set("alone", mine ? show(single.tar, 3) : "–");
    set("guess", mine ? show(mine.next, 3) : "–");
    set("violations", mine ? String(mine.violations) : "–");
    set("words", mine ? this.words(mine, straw, single) : "No task yet: press “Next task”, or press in the circle to add one.");
    const round = this.rounds[0][this.chosen];
    set("chosen", round
      ? `${this.nameOf(this.chosen)}: starts ${show(Math.sqrt(2 * round.divergence), 3)} away from its solution, step η = ${show(round.eta, 3)}, ` +
        `regret ${show(round.regret, 3)}, proved to be at most ${show(round.bound, 3)}.${round.violated ? " It lay further off than guessed." : ""}`
      : "Choose a task to see how it was played.");
  }

  words(mine, straw, single) {
    const n = this.items.length;
    const ratio = single.tar / mine.tar;
    const gain = ratio >= 1 ? `${show(ratio, 2)} times less` : `${show(1 / ratio, 2)} times more`;
    return `After ${n === 1 ? "1 task" : `${n} tasks`} Algorithm 2 has lost ${show(mine.tar, 3)} a task to the best fixed choice, ${gain} than learning ` +
      `each task alone (${show(single.tar, 3)}). Starting at the last task’s solution loses ${show(straw.tar, 3)}. It is proved to lose at most ${show(mine.barBound, 3)}.`;
  }
}
