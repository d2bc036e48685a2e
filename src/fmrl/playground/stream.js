// A stream of tasks: point n follows from the settings and n alone, so that a slider moves all points at once and nothing jumps about.
function streamPoint(n, { spread, drift, clusters, seed }, radius) {
  const random = randomOf(seed * 100003 + n * 7919);
  random();
  const k = Math.floor(random() * clusters);
  const away = Math.sqrt(-2 * Math.log(1 - random())); // two normal numbers (Box and Muller)
  const angle = 2 * Math.PI * random();
  const turn = 0.7 + (2 * Math.PI * k) / clusters + drift * n;
  const centre = [0.55 * Math.cos(turn), 0.55 * Math.sin(turn)];
  const point = [centre[0] + spread * away * Math.cos(angle), centre[1] + spread * away * Math.sin(angle)];
  return intoBall(point.map((v) => v * radius), 0.98 * radius);
}
