// The network of fmrl.deep.omniglot_net: four blocks of [3×3 convolution with stride 2, batch norm on the batch at hand, ReLU], then a dense
// layer. Numbers are doubles in one flat array, in torch's order. Activations are [image, row, column, channel].
const NORM_EPS = 1e-3;

// Where every parameter lies: {kind, at, size, …}, and of the blocks their sides.
function layoutOf(filters, ways, side) {
  const blocks = [];
  let at = 0;
  let inside = 1;
  for (let b = 0; b < 4; b++) {
    const out = Math.ceil(side / 2);
    const pad = Math.max((out - 1) * 2 + 3 - side, 0) >> 1; // an odd pixel of padding goes below and to the right
    const block = { inside, filters, side, out, pad, weight: at };
    at += filters * inside * 9;
    block.scale = at;
    block.shift = at + filters;
    at += 2 * filters;
    blocks.push(block);
    inside = filters;
    side = out;
  }
  const dense = { inside: filters * side * side, ways, side, filters, weight: at, bias: at + ways * filters * side * side };
  return { blocks, dense, filters, ways, size: dense.bias + ways };
}

// The first `ways` outputs of a network with more of them.
function fewerWays(theta, from, ways) {
  const { dense } = from;
  const parts = [theta.subarray(0, dense.weight + ways * dense.inside), theta.subarray(dense.bias, dense.bias + ways)];
  const out = new Float64Array(parts[0].length + ways);
  out.set(parts[0]);
  out.set(parts[1], parts[0].length);
  return out;
}

// A start that nobody trained: Glorot weights, as fmrl.deep gives a new network.
function randomStart(layout, seed) {
  const theta = new Float64Array(layout.size);
  const random = randomOf(seed);
  const fill = (at, count, fans) => {
    const most = Math.sqrt(6 / fans);
    for (let i = 0; i < count; i++) theta[at + i] = most * (2 * random() - 1);
  };
  for (const b of layout.blocks) {
    fill(b.weight, b.filters * b.inside * 9, 9 * (b.inside + b.filters));
    theta.fill(1, b.scale, b.scale + b.filters);
  }
  const { dense } = layout;
  fill(dense.weight, dense.ways * dense.inside, dense.inside + dense.ways);
  return theta;
}

// Visit what every 3×3 neighbourhood holds: where a place's channels begin in an image [n, y, x,
// channel], and in the neighbourhood's row of the patches, channels nine apart.
function neighbourhoods(images, { inside, side, out, pad }, visit) {
  let row = 0;
  for (let n = 0; n < images; n++)
    for (let oy = 0; oy < out; oy++)
      for (let ox = 0; ox < out; ox++, row += inside * 9)
        for (let ky = 0; ky < 3; ky++) {
          const y = 2 * oy + ky - pad;
          if (y < 0 || y >= side) continue;
          for (let kx = 0; kx < 3; kx++) {
            const c = 2 * ox + kx - pad;
            if (c < 0 || c >= side) continue;
            visit(((n * side + y) * side + c) * inside, row + ky * 3 + kx);
          }
        }
}

// Every 3×3 neighbourhood as a row [image·out·out, inside·9], in the order of a filter's weights.
function patchesOf(x, images, b) {
  const rows = new Float64Array(images * b.out * b.out * b.inside * 9);
  neighbourhoods(images, b, (from, to) => {
    for (let i = 0; i < b.inside; i++, to += 9) rows[to] = x[from + i];
  });
  return rows;
}

// The same backwards: gradients of neighbourhoods are added up where they overlap.
function unpatch(rows, images, b) {
  const x = new Float64Array(images * b.side * b.side * b.inside);
  neighbourhoods(images, b, (to, from) => {
    for (let i = 0; i < b.inside; i++, from += 9) x[to + i] += rows[from];
  });
  return x;
}

// A row of patches times every filter; four filters at a time, so that a patch is read less often.
function products(theta, weight, patches, p, width, out, to, filters) {
  let f = 0;
  for (; f + 4 <= filters; f += 4) {
    let [s0, s1, s2, s3] = [0, 0, 0, 0];
    const w0 = weight + f * width;
    const [w1, w2, w3] = [w0 + width, w0 + 2 * width, w0 + 3 * width];
    for (let k = 0; k < width; k++) {
      const v = patches[p + k];
      s0 += v * theta[w0 + k];
      s1 += v * theta[w1 + k];
      s2 += v * theta[w2 + k];
      s3 += v * theta[w3 + k];
    }
    out[to + f] = s0;
    out[to + f + 1] = s1;
    out[to + f + 2] = s2;
    out[to + f + 3] = s3;
  }
  for (; f < filters; f++) {
    let sum = 0;
    for (let k = 0; k < width; k++) sum += patches[p + k] * theta[weight + f * width + k];
    out[to + f] = sum;
  }
}

function blockForward(theta, x, images, b) {
  const { filters } = b;
  const width = b.inside * 9;
  const count = images * b.out * b.out;
  const patches = patchesOf(x, images, b);
  const unit = new Float64Array(count * filters); // z, then (z − mean)/deviation
  for (let r = 0; r < count; r++) products(theta, b.weight, patches, r * width, width, unit, r * filters, filters);
  const over = new Float64Array(filters);
  const out = new Float64Array(count * filters);
  for (let f = 0; f < filters; f++) {
    let mean = 0;
    for (let r = f; r < unit.length; r += filters) mean += unit[r];
    mean /= count;
    let square = 0;
    for (let r = f; r < unit.length; r += filters) square += (unit[r] - mean) ** 2;
    over[f] = 1 / Math.sqrt(square / count + NORM_EPS);
    for (let r = f; r < unit.length; r += filters) {
      unit[r] = (unit[r] - mean) * over[f];
      out[r] = Math.max(0, theta[b.scale + f] * unit[r] + theta[b.shift + f]);
    }
  }
  return { patches, unit, over, out, count };
}

function blockBackward(theta, gradient, above, made, images, b, first) {
  const { filters } = b;
  const { patches, unit, over, out, count } = made;
  const width = b.inside * 9;
  const g = above; // of the output; becomes that of z
  for (let f = 0; f < filters; f++) {
    let sum = 0;
    let along = 0;
    for (let r = f; r < g.length; r += filters) {
      if (out[r] <= 0) g[r] = 0;
      sum += g[r];
      along += g[r] * unit[r];
    }
    gradient[b.scale + f] = along;
    gradient[b.shift + f] = sum;
    const scale = theta[b.scale + f] * over[f];
    for (let r = f; r < g.length; r += filters) g[r] = scale * (g[r] - (sum + unit[r] * along) / count);
  }
  const below = first ? null : new Float64Array(patches.length);
  for (let r = 0; r < count; r++)
    for (let f = 0; f < filters; f++) {
      const slope = g[r * filters + f];
      if (slope === 0) continue;
      const p = r * width;
      const w = b.weight + f * width;
      if (!below) for (let k = 0; k < width; k++) gradient[w + k] += slope * patches[p + k];
      else
        for (let k = 0; k < width; k++) {
          gradient[w + k] += slope * patches[p + k];
          below[p + k] += slope * theta[w + k];
        }
    }
  return first ? null : unpatch(below, images, b);
}

// Logits [images, ways] of pixels [images, side, side], and what the way back needs.
function forward(theta, layout, pixels, images) {
  const made = [];
  let x = pixels;
  for (const b of layout.blocks) {
    made.push(blockForward(theta, x, images, b));
    x = made.at(-1).out;
  }
  const { inside, ways, weight, bias, side, filters } = layout.dense;
  const flat = new Float64Array(images * inside); // torch flattens [channel, row, column]
  const places = side * side;
  for (let n = 0; n < images; n++)
    for (let s = 0; s < places; s++)
      for (let f = 0; f < filters; f++) flat[n * inside + f * places + s] = x[(n * places + s) * filters + f];
  const logits = new Float64Array(images * ways);
  for (let n = 0; n < images; n++)
    for (let c = 0; c < ways; c++) {
      let sum = theta[bias + c];
      for (let k = 0; k < inside; k++) sum += flat[n * inside + k] * theta[weight + c * inside + k];
      logits[n * ways + c] = sum;
    }
  return { logits, flat, made };
}

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = Array.from(logits, (v) => Math.exp(v - most));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((v) => v / total);
}

// Mean cross-entropy of a batch and its gradient.
function lossAndGradient(theta, layout, pixels, labels) {
  const images = labels.length;
  const { logits, flat, made } = forward(theta, layout, pixels, images);
  const { inside, ways, weight, bias, side, filters } = layout.dense;
  const gradient = new Float64Array(layout.size);
  const places = side * side;
  let x = new Float64Array(images * inside);
  let loss = 0;
  for (let n = 0; n < images; n++) {
    const shares = softmax(logits.subarray(n * ways, (n + 1) * ways));
    loss -= Math.log(Math.max(shares[labels[n]], 1e-300)) / images;
    for (let c = 0; c < ways; c++) {
      const slope = (shares[c] - (c === labels[n] ? 1 : 0)) / images;
      gradient[bias + c] += slope;
      for (let f = 0; f < filters; f++)
        for (let s = 0; s < places; s++) {
          const k = f * places + s;
          gradient[weight + c * inside + k] += slope * flat[n * inside + k];
          x[(n * places + s) * filters + f] += slope * theta[weight + c * inside + k];
        }
    }
  }
  for (let b = 3; b >= 0; b--) x = blockBackward(theta, gradient, x, made[b], images, layout.blocks[b], b === 0);
  return { loss, gradient };
}

// fmrl.deep's Adam (beta1 = 0) or SGD, one step in place. `learner`: {theta, second, taken, step, beta2, eps}; second is null for SGD.
function descend(learner, layout, pixels, labels) {
  const { loss, gradient } = lossAndGradient(learner.theta, layout, pixels, labels);
  const { theta, second, step, beta2, eps } = learner;
  learner.taken += 1;
  const share = second ? 1 - beta2 ** learner.taken : 1;
  for (let i = 0; i < theta.length; i++) {
    const g = gradient[i];
    if (!second) theta[i] -= step * g;
    else {
      second[i] = beta2 * second[i] + (1 - beta2) * g * g;
      theta[i] -= (step * g) / (Math.sqrt(second[i] / share) + eps);
    }
  }
  return loss;
}

// Class probabilities of one query, in one batch with the drawings.
function answer(theta, layout, pixels, images, query) {
  const batch = new Float64Array(pixels.length + query.length);
  batch.set(pixels);
  batch.set(query, pixels.length);
  return softmax(forward(theta, layout, batch, images + 1).logits.subarray(images * layout.ways));
}
