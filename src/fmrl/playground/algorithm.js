// Algorithm 2 on the ball of radius R around 0, as fmrl.run plays it with OMD, FAL and Doubling.
// A task is a point c: in the plane, or with more coordinates of which the page draws the first two. Its rounds are measurements ⟨x_i, c⟩ along
// directions x_i, and the loss of an action θ is ½(⟨x_i, θ⟩ − ⟨x_i, c⟩)². So c is the best action in hindsight, with loss 0.
const GOLDEN = Math.PI * (3 - Math.sqrt(5));
const METHODS = ["algorithm", "strawman", "single"];

// One pass after another over all coordinates: a pair at right angles in the plane, turned a little further each time, then the other axes.
function directions(rounds, size = 2) {
  return Array.from({ length: rounds }, (_, i) => {
    const x = new Array(size).fill(0);
    const j = i % size;
    const angle = Math.floor(i / size) * GOLDEN + j * (Math.PI / 2);
    if (j < 2) [x[0], x[1]] = [Math.cos(angle), Math.sin(angle)];
    else x[j] = 1;
    return x;
  });
}

const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);

function intoBall(point, radius) {
  const shrink = radius / Math.max(Math.hypot(...point), radius);
  return point.map((v) => v * shrink);
}

const half = (a, b) => a.reduce((sum, v, i) => sum + (v - b[i]) ** 2, 0) / 2; // the divergence B(a‖b)

// One task from phi with the step eta: lazy descent. The actions, and the loss of each round.
function playTask(c, rows, phi, eta, radius) {
  const total = c.map(() => 0);
  const actions = [];
  const losses = [];
  const next = () => intoBall(phi.map((v, i) => v - eta * total[i]), radius);
  for (const x of rows) {
    const theta = next();
    const off = dot(x, theta) - dot(x, c);
    actions.push(theta);
    losses.push((off * off) / 2);
    x.forEach((v, i) => (total[i] += off * v));
  }
  actions.push(next());
  return { actions, losses };
}

// A method on a list of points. "algorithm": phi is the weighted mean of the optima so far. "strawman": the last optimum. "single": always 0.
// rounds: of a task in the plane; with more coordinates as many more, so that each is measured as often.
function playAll(method, points, { radius, rounds: flat, epsilon, gamma }) {
  const size = points[0]?.length ?? 2;
  const rounds = Math.round((flat * size) / 2);
  const rows = directions(rounds, size);
  let phi = new Array(size).fill(0);
  let weight = 0;
  let violations = 0;
  let guess = method === "single" ? Math.SQRT2 * radius : radius / Math.SQRT2 + epsilon;
  let sums = [0, 0];
  return points.map((c, t) => {
    const steep = rows.map((x) => radius + Math.abs(dot(x, c)));
    const lipschitz = Math.sqrt(steep.reduce((sum, v) => sum + v * v, 0) / rounds);
    const sigma = lipschitz * Math.sqrt(rounds);
    const eta = guess / sigma;
    const { actions, losses } = playTask(c, rows, phi, eta, radius);
    const regret = losses.reduce((a, b) => a + b, 0);
    const divergence = half(c, phi);
    const bound = divergence / eta + eta * lipschitz ** 2 * rounds;
    sums = [sums[0] + regret, sums[1] + bound];
    const violated = guess < Math.sqrt(divergence);
    const round = { phi, guess, eta, regret, bound, divergence, violated, tar: sums[0] / (t + 1), barBound: sums[1] / (t + 1), actions };
    if (method !== "single") {
      violations += violated ? 1 : 0;
      guess = epsilon * gamma ** violations;
    }
    if (method === "strawman") phi = c;
    if (method === "algorithm") phi = c.map((v, i) => (weight * phi[i] + sigma * v) / (weight + sigma));
    weight += sigma;
    return { ...round, after: phi, next: guess, violations };
  });
}
