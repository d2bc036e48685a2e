// The worker: adapts the learned and the random start, a step at a time, and tells the page after each. A new message replaces the work at hand.
let weights = null; // {filters, ways, side, theta, second, taken, step, beta2, eps}
let job = null;

function begin(message) {
  const whole = layoutOf(weights.filters, weights.ways, weights.side);
  const layout = layoutOf(weights.filters, message.ways, weights.side);
  const cut = (values) => values && fewerWays(values, whole, message.ways);
  const rule = { step: weights.step, beta2: weights.beta2, eps: weights.eps };
  const learned = { ...rule, theta: cut(weights.theta), second: cut(weights.second), taken: weights.taken };
  // What Adam remembers of earlier tasks is part of what was learned, so the random start has none of it.
  if (weights.second === null && weights.adaptive) Object.assign(learned, { second: new Float64Array(layout.size), taken: 0 });
  const random = { ...rule, theta: randomStart(layout, message.seed), second: weights.adaptive ? new Float64Array(layout.size) : null, taken: 0 };
  for (const start of [learned, random]) start.losses = [];
  job = { ...message, layout, at: 0, starts: { learned, random } };
  tell();
  next(job);
}

function tell() {
  const { id, layout, images, labels, query, at, steps, starts } = job;
  const found = {};
  for (const [name, { theta, losses }] of Object.entries(starts))
    found[name] = { losses, shares: query ? answer(theta, layout, images, labels.length, query) : null };
  postMessage({ id, step: at, steps, ...found });
}

function next(mine) {
  setTimeout(() => {
    if (job !== mine || job.at >= job.steps) return;
    for (const learner of Object.values(job.starts)) learner.losses.push(descend(learner, job.layout, job.images, job.labels));
    job.at += 1;
    if (job.at === job.steps) // a step tells the loss before it; the last one is still to be told
      for (const { theta, losses } of Object.values(job.starts)) losses.push(lossAndGradient(theta, job.layout, job.images, job.labels).loss);
    tell();
    next(mine);
  });
}

onmessage = ({ data }) => {
  if (data.weights) weights = data.weights;
  else if (data.stop) job = null;
  else if (data.images) begin(data);
  else if (job) {
    job.query = data.query;
    tell();
  }
};
