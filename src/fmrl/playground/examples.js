// Five made-up signs, and hands that draw them a little differently each time.
const SIGNS = [
  [arc(0.38, 0.3, 0.17, 0, 6.4), [[0.45, 0.46], [0.62, 0.9]], [[0.57, 0.76], [0.72, 0.7]]], // a key
  [[[0.7, 0.1], [0.3, 0.5], [0.62, 0.5], [0.28, 0.92]]], // lightning
  [spiral()],
  [[[0.5, 0.92], [0.5, 0.12]], [[0.22, 0.42], [0.5, 0.12], [0.78, 0.42]], [[0.25, 0.68], [0.75, 0.68]]], // a tree
  [[[0.2, 0.25], [0.26, 0.8], [0.62, 0.8], [0.68, 0.25]], arc(0.68, 0.48, 0.17, -1.4, 1.5), [[0.14, 0.25], [0.74, 0.25]]], // a cup
];

function arc(x, y, r, from, to) {
  return Array.from({ length: 25 }, (_, i) => {
    const angle = from + ((to - from) * i) / 24;
    return [x + r * Math.cos(angle), y + r * Math.sin(angle)];
  });
}

function spiral() {
  return Array.from({ length: 45 }, (_, i) => {
    const angle = 0.4 + i * 0.3;
    return [0.5 + 0.028 * angle * Math.cos(angle), 0.5 + 0.028 * angle * Math.sin(angle)];
  });
}

// The sign, turned, sheared, stretched and bent by a hand that a number stands for.
function drawnBy(hand, sign) {
  const [turn, shear, wide, phase, bend] = [1, 2, 3, 4, 5].map((i) => Math.sin(hand * 12.9898 * i + i * 4.1));
  const [c, s] = [Math.cos(0.14 * turn), Math.sin(0.14 * turn)];
  const one = ([x, y]) => {
    const [u, v] = [(x - 0.5) * (1 + 0.1 * wide) + 0.14 * shear * (y - 0.5), y - 0.5];
    const [p, q] = [c * u - s * v, s * u + c * v];
    return [0.5 + p + 0.025 * bend * Math.sin(7 * q + 3 * phase), 0.5 + q + 0.025 * bend * Math.sin(7 * p + 2 * phase)];
  };
  return SIGNS[sign].map((stroke) => {
    const dense = stroke.flatMap((p, i) => (i && stroke.length < 9 ? between(stroke[i - 1], p) : [p]));
    return dense.map((p) => one(p).map((v) => Math.round(1e4 * v) / 1e4));
  });
}

function between(a, b) {
  return [1, 2, 3, 4, 5, 6].map((k) => [a[0] + ((b[0] - a[0]) * k) / 6, a[1] + ((b[1] - a[1]) * k) / 6]);
}
