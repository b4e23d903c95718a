// Unpacks Plotly, draws the figures, and draws them again in the colours of the other theme.
"use strict";
(async () => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const opened = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;

  const dark = () => (chosen === null ? opened.matches : chosen === "dark");

  // "@in" is the colour of that name, "@in/20" the same at 20 %.
  function coloured(value, style) {
    if (typeof value === "string") {
      const found = /^@([a-z0-9]+)(?:\/(\d+))?$/.exec(value);
      if (!found) return value;
      const hex = style.getPropertyValue("--" + found[1]).trim();
      if (!found[2]) return hex;
      const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
      return `rgba(${parts.join(",")},${found[2] / 100})`;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
    }
    return value;
  }

  function draw() {
    root.dataset.theme = dark() ? "dark" : "light";
    button.textContent = dark() ? "Light" : "Dark";
    if (!window.Plotly) return;
    const style = getComputedStyle(root);
    const font = getComputedStyle(document.body).fontFamily;
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = coloured(figures[place.dataset.figure], style);
      figure.layout.font.family = font;
      Plotly.react(place, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    }
  }

  button.addEventListener("click", () => { chosen = dark() ? "light" : "dark"; draw(); });
  opened.addEventListener("change", draw);
  draw();

  const packed = document.getElementById("plotly");
  if (!packed) return;
  try {
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    draw();
    root.dataset.drawn = "yes";
  } catch (error) {
    for (const place of document.querySelectorAll("[data-figure]")) {
      place.innerHTML = '<p class="none">This browser cannot draw the charts (it is older than 2023); the numbers are below each.</p>';
    }
  }
})();
