"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { figures, colours } = read("figures");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const coarse = matchMedia("(pointer: coarse)");
  const PRINTED = { width: 640, half: 305, height: 260 };
  const chosen = {}; // by figure, the number of its view
  const hidden = {}; // by figure, the names that were switched off
  let printing = print.matches;

  const paint = (thing, names) => {
    if (Array.isArray(thing)) return thing.map((value) => paint(value, names));
    if (thing && typeof thing === "object")
      return Object.fromEntries(Object.entries(thing).map(([key, value]) => [key, paint(value, names)]));
    return typeof thing === "string" && thing[0] === "@" ? names[thing.slice(1)] || thing : thing;
  };

  // What is drawn may belong to several entries of the legend, as to a colour and to a shape.
  const groups = (trace) => trace.meta?.groups || [trace.name];

  const spec = (figure, half) => {
    const { data, layout } = structuredClone(figure.views[chosen[figure.id] || 0]);
    layout.font.family = getComputedStyle(document.body).fontFamily;
    if (coarse.matches) layout.dragmode = false; // a finger scrolls the page
    for (const trace of data) if (groups(trace).some((name) => hidden[figure.id]?.has(name))) trace.visible = false;
    layout.autosize = !printing;
    if (printing && half) Object.assign(layout, { width: PRINTED.half, height: PRINTED.height });
    else if (printing) layout.width = PRINTED.width;
    const names = dark.matches && !printing ? colours.dark : colours.light;
    return paint({ data, layout }, names);
  };

  const DASHES = { dash: "6 3", dot: "2 3", dashdot: "7 3 2 3", longdash: "10 3", longdashdot: "10 3 2 3" };
  const MARKS = {
    circle: "M15 3.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9z",
    square: "M11 4h8v8h-8z",
    diamond: "M15 2.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
    "triangle-up": "M15 3l5 9h-10z",
    x: "M11 4l8 8m0-8l-8 8",
    cross: "M15 3v10m-5-5h10",
  };

  const swatch = (trace) => {
    if (trace.type === "bar")
      return `<svg width="14" height="16" aria-hidden="true" fill="${trace.marker.color}"><rect width="14" height="14" y="1" rx="2"/></svg>`;
    const colour = trace.line?.color || trace.marker.line.color;
    const open = trace.marker?.symbol === "circle-open";
    const fill = open ? "none" : typeof trace.marker?.color === "string" ? trace.marker.color : colour;
    const shape = MARKS[trace.marker?.symbol] || MARKS.circle;
    const line = `<path d="M0 8h30" stroke-width="2.5" stroke-dasharray="${DASHES[trace.line?.dash] || ""}"/>`;
    const mark = trace.mode?.includes("markers") ? `<path d="${shape}" fill="${fill}" stroke-width="1.8"/>` : "";
    const alone = !trace.mode.includes("lines"); // the middle of the same drawing, without the line
    return `<svg width="${alone ? 14 : 30}" height="16" viewBox="${alone ? "8 0 14 16" : "0 0 30 16"}" aria-hidden="true" stroke="${colour}">${alone ? "" : line}${mark}</svg>`;
  };

  // Names are escaped for plotly, which reads them as HTML.
  const plain = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  const legend = (figure, data) => {
    const list = document.getElementById(`legend-${figure.id}`);
    const items = data.filter(({ showlegend }) => showlegend !== false).map((trace, number) => {
      const button = document.createElement("button");
      const name = groups(trace)[0];
      const shown = !hidden[figure.id]?.has(name);
      button.type = "button";
      button.setAttribute("aria-pressed", shown);
      button.title = shown ? "Click to hide" : "Click to show";
      button.innerHTML = swatch(trace);
      const label = document.createElement("span");
      label.textContent = plain(trace.name);
      button.append(label);
      button.addEventListener("click", () => {
        const names = (hidden[figure.id] ||= new Set());
        names.delete(name) || names.add(name);
        draw(figure);
        list.children[number].firstChild.focus();
      });
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    list.replaceChildren(...items);
  };

  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: coarse.matches ? false : "hover",
    modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
  };

  const draw = (figure) => {
    const place = document.getElementById(`plot-${figure.id}`);
    const { data, layout } = spec(figure, place.closest(".pair"));
    place.style.height = `${layout.height}px`;
    legend(figure, data);
    Plotly.react(place, data, layout, config);
  };
  const drawAll = () => figures.forEach(draw);

  const setPrinting = (now) => {
    if (now === printing) return;
    printing = now;
    drawAll();
  };

  for (const control of document.querySelectorAll("[data-figure]"))
    control.addEventListener("change", (event) => {
      const figure = figures.find(({ id }) => id === control.dataset.figure);
      chosen[figure.id] = Number(event.target.value);
      draw(figure);
    });

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  const say = (button, words) => {
    const before = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = words;
    setTimeout(() => (button.textContent = before), 1500);
  };

  for (const button of document.querySelectorAll("button[data-copy]"))
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      await copy(source.type === "application/json" ? read(source.id) : source.textContent.trim());
      say(button, "Copied");
    });

  for (const button of document.querySelectorAll("button[data-save]"))
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([read(button.dataset.save)], { type: "text/csv" }));
      link.download = button.dataset.name;
      link.click();
      URL.revokeObjectURL(link.href);
      say(button, "Saved");
    });

  drawAll();
  dark.addEventListener("change", drawAll);
  print.addEventListener("change", (event) => setPrinting(event.matches));
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
})();
