// The switch between the system's colours, light and dark.
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
