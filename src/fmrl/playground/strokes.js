// Strokes to pixels. A drawing is a list of strokes, each a list of [x, y] in the unit square; a picture is 28 × 28 numbers, ink 1 and paper 0.
const SIDE = 28;
const INK = 20; // pixels of the longer side of the ink, as in training
const PEN = 1.2; // pixels
const SMALLEST = 8 / 105; // of the square: a dot does not fill the picture

// The strokes in pixels, in the middle and at one size.
function framed(strokes) {
  const points = strokes.flat();
  const low = [0, 1].map((i) => Math.min(...points.map((p) => p[i])));
  const high = [0, 1].map((i) => Math.max(...points.map((p) => p[i])));
  const scale = (INK - PEN) / Math.max(high[0] - low[0], high[1] - low[1], SMALLEST);
  return strokes.map((stroke) => stroke.map((p) => p.map((v, i) => SIDE / 2 + (v - (low[i] + high[i]) / 2) * scale)));
}

// Every pixel by its distance to the nearest stroke.
function pictureOf(strokes) {
  const pixels = new Float64Array(SIDE * SIDE);
  if (!strokes.length) return pixels;
  for (const stroke of framed(strokes))
    for (let s = 0; s < Math.max(1, stroke.length - 1); s++) {
      const [ax, ay] = stroke[s];
      const [bx, by] = stroke[Math.min(s + 1, stroke.length - 1)];
      const [dx, dy] = [bx - ax, by - ay];
      const length = dx * dx + dy * dy;
      const [left, right] = [Math.min(ax, bx) - 2, Math.max(ax, bx) + 2].map((v) => Math.min(SIDE, Math.max(0, Math.floor(v))));
      const [top, bottom] = [Math.min(ay, by) - 2, Math.max(ay, by) + 2].map((v) => Math.min(SIDE, Math.max(0, Math.floor(v))));
      for (let y = top; y < bottom; y++)
        for (let x = left; x < right; x++) {
          const [px, py] = [x + 0.5 - ax, y + 0.5 - ay];
          const t = length > 0 ? Math.min(1, Math.max(0, (px * dx + py * dy) / length)) : 0;
          const ink = Math.min(1, Math.max(0, PEN / 2 + 0.5 - Math.hypot(px - t * dx, py - t * dy)));
          if (ink > pixels[y * SIDE + x]) pixels[y * SIDE + x] = ink;
        }
    }
  return pixels;
}
