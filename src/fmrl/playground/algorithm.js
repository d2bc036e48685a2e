// Algorithm 2 in the plane, on the ball of radius R around 0, as fmrl.run plays it with OMD, FAL and Doubling.
// A task is a point c. Its rounds are measurements ⟨x_i, c⟩ along directions x_i that come in pairs at right angles; the loss of an action θ is
// ½(⟨x_i, θ⟩ − ⟨x_i, c⟩)². So c is the best action in hindsight, with loss 0.
const GOLDEN = Math.PI * (3 - Math.sqrt(5));
const METHODS = ["algorithm", "strawman", "single"];

function directions(rounds) {
  return Array.from({ length: rounds }, (_, i) => {
    const angle = (i >> 1) * GOLDEN + (i & 1) * (Math.PI / 2);
    return [Math.cos(angle), Math.sin(angle)];
  });
}

function intoBall([x, y], radius) {
  const shrink = radius / Math.max(Math.hypot(x, y), radius);
  return [x * shrink, y * shrink];
}

const half = (a, b) => ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) / 2; // the divergence B(a‖b)

// One task from phi with the step eta: lazy descent. The actions, and the loss of each round.
function playTask(c, rows, phi, eta, radius) {
  let total = [0, 0];
  const actions = [];
  const losses = [];
  for (const x of rows) {
    const theta = intoBall([phi[0] - eta * total[0], phi[1] - eta * total[1]], radius);
    const off = x[0] * (theta[0] - c[0]) + x[1] * (theta[1] - c[1]);
    actions.push(theta);
    losses.push((off * off) / 2);
    total = [total[0] + off * x[0], total[1] + off * x[1]];
  }
  actions.push(intoBall([phi[0] - eta * total[0], phi[1] - eta * total[1]], radius));
  return { actions, losses };
}

// A method on a list of points. "algorithm": phi is the weighted mean of the optima so far. "strawman": the last optimum. "single": always 0.
function playAll(method, points, { radius, rounds, epsilon, gamma }) {
  const rows = directions(rounds);
  let phi = [0, 0];
  let weight = 0;
  let violations = 0;
  let guess = method === "single" ? Math.SQRT2 * radius : radius / Math.SQRT2 + epsilon;
  let sums = [0, 0];
  return points.map((c, t) => {
    const steep = rows.map((x) => radius + Math.abs(x[0] * c[0] + x[1] * c[1]));
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
    if (method === "algorithm") phi = [0, 1].map((i) => (weight * phi[i] + sigma * c[i]) / (weight + sigma));
    weight += sigma;
    return { ...round, after: phi, next: guess, violations };
  });
}
