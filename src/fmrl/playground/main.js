// Put the parts together. `playground` is there for tests, and for readers who open the console.
document.documentElement.classList.add("ready"); // nothing was painted before, so nothing shifts
theme();
const given = JSON.parse(document.getElementById("data").textContent);
const drawing = new Draw(document.getElementById("draw"), given.weights);
const watch = new Watch(document.getElementById("watch"), null);
let table = null;
const mine = document.getElementById("table");
if (given.table) {
  const { title, explained, held, of, points } = given.table;
  for (const part of mine.querySelectorAll("[data-when]")) part.hidden = part.dataset.when !== "given";
  mine.querySelector('[data-part="title"]').textContent = title;
  const every = points.length < of ? `${points.length} of its ${of.toLocaleString("en")} tasks, spread over the run` : `its ${of.toLocaleString("en")} tasks`;
  const share = Math.round(100 * (explained[0] + explained[1]));
  const numbers = held > 0.9995 ? "The numbers are computed in all directions." :
    `The numbers are computed in ${points[0].length} directions, which hold ${Math.floor(1000 * held) / 10} %.`;
  mine.querySelector('[data-part="about"]').textContent =
    `These are ${every}, in the order they were played, seen along the two directions in which their solutions differ most; these hold ${share} % of the differences. ${numbers}`;
  table = new Watch(mine, given.table);
}
window.playground = { draw: drawing, watch, table, pictureOf, playAll, directions, drawnBy };
