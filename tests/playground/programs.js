// Longer programs that the tests run in Node, in one scope with the page's files.

// The worker without a browser: messages are collected, and what it puts off is done at the end.
const queue = [];
const told = [];
const setTimeout = (later) => queue.push(later);
const postMessage = (message) => told.push(structuredClone(message));
let onmessage;

// Adapt as the page asks the worker to. All that it told, and where the random start began.
function adapted({ weights, ways, seed, images, labels, query, steps }) {
  const doubles = (values) => values && Float64Array.from(values.flat());
  onmessage({ data: { weights: { ...weights, theta: doubles(weights.theta), second: doubles(weights.second) } } });
  onmessage({ data: { id: 1, ways, seed, steps, images: doubles(images), labels, query: doubles(query) } });
  while (queue.length) queue.shift()();
  return { told, start: [...randomStart(layoutOf(weights.filters, ways, weights.side), seed)] };
}

// Signs c = 0, 1, … drawn by several hands, as pictures with labels, and a query: sign 1 once more.
function drawings({ ways, shots }) {
  const images = [];
  const labels = [];
  for (let c = 0; c < ways; c++)
    for (let s = 0; s < shots; s++) {
      images.push([...pictureOf(drawnBy(11 + c + 7 * s, c))]);
      labels.push(c);
    }
  return { images, labels, query: [...pictureOf(drawnBy(50, 1))] };
}

// Over a grid of the sliders: the largest regret less its bound, of a task and on average, and how many tasks were played.
function nearestToBound(grid) {
  let settings = [{}];
  for (const [name, values] of Object.entries(grid)) settings = settings.flatMap((s) => values.map((v) => ({ ...s, [name]: v })));
  let worst = -Infinity;
  let tasks = 0;
  for (const how of settings) {
    const points = Array.from({ length: 40 }, (_, n) => streamPoint(n, how, how.radius));
    if (points.some((p) => !(Math.hypot(...p) <= how.radius))) throw new Error("a point outside the ball");
    for (const method of METHODS)
      for (const r of playAll(method, points, how)) {
        worst = Math.max(worst, r.regret - r.bound, r.tar - r.barBound);
        tasks += 1;
      }
  }
  return [worst, tasks];
}
