// Unpacks Plotly, draws the figures, and draws them again in the colours of the other theme.
"use strict";
(async () => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const opened = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;

  // On a narrow screen a row is a list: each cell has its title before it.
  for (const table of document.querySelectorAll(".stack table")) {
    const titles = [...table.querySelectorAll("th")].map((cell) => cell.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, at) => (cell.dataset.title = titles[at]));
    }
  }

  const dark = () => (chosen === null ? opened.matches : chosen === "dark");

  // "@in" is the colour of that name, "@in/20" the same at 20 %.
  function coloured(value, style) {
    if (typeof value === "string") {
      const match = /^@([a-z0-9]+)(?:\/(\d+))?$/.exec(value);
      if (!match) return value;
      const [, name, percent] = match;
      const hex = style.getPropertyValue("--" + name).trim();
      if (!percent) return hex;
      const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
      return `rgba(${parts.join(",")},${percent / 100})`;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, style));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  }

  // Names are escaped for Plotly.
  function plain(name) {
    const area = document.createElement("textarea");
    area.innerHTML = name;
    return area.value;
  }

  // Long names leave room for the bars.
  function shortened(name, most) {
    const text = [...plain(name)];
    if (text.length <= most) return name;
    const area = document.createElement("textarea");
    area.textContent = text.slice(0, most - 1).join("") + "…";
    return area.innerHTML;
  }

  function shorten(plot, data, layout) {
    if (!data.length || data[0].orientation !== "h") return;
    const names = data[0].y;
    const most = Math.max(10, Math.floor(plot.clientWidth / 20));
    layout.yaxis = { ...layout.yaxis, tickvals: names, ticktext: names.map((name) => shortened(name, most)) };
  }

  // The legend of a chart with several series: it wraps, however narrow the card is.
  function legend(plot, data) {
    let list = plot.nextElementSibling;
    if (!list || list.className !== "legend") {
      list = document.createElement("ul");
      list.className = "legend";
      plot.after(list);
    }
    const shown = data.filter((trace) => trace.showlegend !== false);
    list.replaceChildren(...(shown.length > 1 ? shown : []).map((trace) => {
      const [item, mark, name] = ["li", "i", "span"].map((kind) => document.createElement(kind));
      mark.style.background = trace.line ? trace.line.color : trace.marker.color;
      name.textContent = name.title = plain(trace.name);
      item.append(mark, name);
      return item;
    }));
  }

  function draw() {
    root.dataset.theme = dark() ? "dark" : "light";
    button.textContent = dark() ? "Light" : "Dark";
    if (!window.Plotly) return;
    const style = getComputedStyle(root);
    const template = coloured(charts.template, style);
    template.layout.font.family = getComputedStyle(document.body).fontFamily;
    for (const plot of document.querySelectorAll("[data-figure]")) {
      const { data, layout } = coloured(charts.figures[plot.dataset.figure], style);
      shorten(plot, data, layout);
      legend(plot, data);
      Plotly.react(plot, data, { ...layout, template }, { responsive: true, displayModeBar: false });
    }
  }

  button.addEventListener("click", () => { chosen = dark() ? "light" : "dark"; draw(); });
  opened.addEventListener("change", draw);
  draw();

  const packed = document.getElementById("plotly");
  if (!packed) return;
  try {
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    draw();
    root.dataset.drawn = "yes";
  } catch (error) {
    for (const plot of document.querySelectorAll("[data-figure]")) {
      plot.innerHTML = '<p class="none">This browser cannot draw the charts (it is older than 2023); the numbers are below each.</p>';
    }
  }
})();
