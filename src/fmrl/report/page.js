// The charts, and unfolding what is folded before printing.
theme();
for (const spec of JSON.parse(document.getElementById("data").textContent)) {
  const figure = document.querySelector(`figure[data-chart="${spec.id}"]`);
  if (figure) new Explorer(figure, spec);
}
// A link to a folded section unfolds it.
function reveal() {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const fold = target && (target.closest("details") || (target.id === "theory" && target.querySelector("details")));
  if (!fold || fold.open) return;
  fold.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
const folded = () => [...document.querySelectorAll("details:not([open])")];
let opened = [];
addEventListener("beforeprint", () => {
  opened = folded();
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => opened.forEach((part) => (part.open = false)));
