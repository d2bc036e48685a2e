// The theme switch, the charts, and unfolding what is folded before printing.
function theme() {
  const button = document.getElementById("theme");
  const names = ["auto", "light", "dark"];
  const store = (value) => {
    try {
      return value === undefined ? localStorage.getItem("fmrl-theme") : localStorage.setItem("fmrl-theme", value);
    } catch {
      return null; // a page opened from a file may have no storage
    }
  };
  const set = (name) => {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", name);
    button.textContent = `Theme: ${name}`;
  };
  let now = Math.max(0, names.indexOf(store()));
  set(names[now]);
  button.hidden = false;
  button.addEventListener("click", () => {
    now = (now + 1) % names.length;
    set(names[now]);
    store(names[now]);
  });
}

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
