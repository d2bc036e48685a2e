// The charts, and unfolding what is folded before printing.
theme();
for (const spec of JSON.parse(document.getElementById("data").textContent)) {
  const figure = document.querySelector(`figure[data-chart="${spec.id}"]`);
  if (figure) new Explorer(figure, spec);
}
const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => {
  opened = folded();
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
