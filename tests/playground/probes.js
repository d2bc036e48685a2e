// What the browser tests ask of the page, as functions of `probe`.
window.probe = (() => {
  const CONTROLS = "button, select, input, canvas, summary, a, svg[tabindex]";
  const all = (selector) => [...document.querySelectorAll(selector)];
  const seen = { opacityProperty: true, visibilityProperty: true };
  const shown = (e) => e.getClientRects().length > 0 && e.checkVisibility(seen);
  const rgb = (text) => {
    const v = text.match(/[\d.]+/g).map(Number);
    return [v[0], v[1], v[2], v[3] ?? 1];
  };
  const light = (c) =>
    c.slice(0, 3)
      .map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (ink, paper) => [...ink.slice(0, 3).map((v, i) => ink[3] * v + (1 - ink[3]) * paper[i]), 1];
  const under = (e) => (e ? over(rgb(getComputedStyle(e).backgroundColor), under(e.parentElement)) : [255, 255, 255, 1]);
  const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.[0]?.textContent.trim() || e.title;
  return {
    // [contrast, text] of every element with text of its own.
    colours: () =>
      all("body *")
        .filter((e) => shown(e) && !e.closest("script, option"))
        .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
        .map((e) => {
          const svg = e.namespaceURI.endsWith("svg");
          const style = getComputedStyle(e);
          const [ink, paper] = [rgb(svg ? style.fill : style.color), under(svg ? e.closest("div") : e)];
          const [a, b] = [light(over(ink, paper)), light(paper)];
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 30)];
        }),
    nameless: () => all(CONTROLS + ", svg[role=img]").filter((e) => getComputedStyle(e).display !== "none" && !named(e)).map((e) => e.outerHTML.slice(0, 80)),
    controls: () => all(CONTROLS).filter((e) => shown(e) && !e.disabled).length,
    unreached: (seen) => all(CONTROLS).filter((e) => shown(e) && !e.disabled && !seen.has(e)).map((e) => e.outerHTML.slice(0, 80)),
    wide: () => all("section *").filter((e) => shown(e) && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 80)),
    choose: (name, value) => {
      const select = playground.draw.find(name);
      select.value = value;
      select.dispatchEvent(new Event("change"));
    },
    // Whether the adaptation at hand has ended, with an answer.
    done: () => Boolean(playground.draw.shown?.step === 30 && playground.draw.shown.learned.shares),
    until: (condition, seconds) =>
      new Promise((tell) => {
        const end = performance.now() + 1000 * seconds;
        const look = () => (condition() ? tell(true) : performance.now() > end ? tell(false) : setTimeout(look, 20));
        look();
      }),
    // When frames came until a condition held.
    frames: (condition) =>
      new Promise((tell) => {
        const at = [];
        const look = (t) => {
          at.push(t);
          if (condition() || t - at[0] > 40000) tell(at);
          else requestAnimationFrame(look);
        };
        requestAnimationFrame(look);
      }),
    shifts: () => {
      window.shift = 0;
      const add = (list) => list.getEntries().forEach((e) => (window.shift += e.value));
      new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
    },
  };
})();
0;
