// Hints are shown by us, at once and by keys too, and not by the browser a second later.
for (const title of document.querySelectorAll(".chart title")) {
  title.parentElement.dataset.hint = title.textContent;
  title.remove();
}

// A surface is read off patch by patch: where the pointer or a finger is, or by the arrow keys once it has the focus.
for (const chart of document.querySelectorAll(".readable")) {
  const patches = [...chart.querySelectorAll(".patch, .gap")];
  const steps = { ArrowUp: Number(chart.dataset.stepUp), ArrowRight: Number(chart.dataset.stepRight) };
  steps.ArrowDown = -steps.ArrowUp;
  steps.ArrowLeft = -steps.ArrowRight;
  const length = Math.max(Math.abs(steps.ArrowUp), Math.abs(steps.ArrowRight));
  const readout = document.createElement("p");
  readout.className = "readout";
  readout.textContent = "Point at a place, touch it or press the arrow keys to read its values.";
  chart.after(readout);
  let here = -1;
  const read = (index, aloud) => {
    if (here >= 0) patches[here].classList.remove("reading");
    here = index;
    patches[here].classList.add("reading");
    readout.textContent = patches[here].dataset.hint;
    if (aloud) document.getElementById("status").textContent = readout.textContent;
  };
  const middle = Math.floor(patches.length / length / 2) * length + Math.floor(length / 2);
  for (const event of ["pointermove", "pointerdown"])
    chart.addEventListener(event, (moved) => {
      const index = patches.indexOf(moved.target);
      if (index >= 0 && index !== here) read(index, false);
    });
  chart.addEventListener("keydown", (pressed) => {
    const step = steps[pressed.key];
    if (step === undefined) return;
    pressed.preventDefault();
    if (here < 0) return read(middle, true);
    const next = here + step;
    const inLine = Math.abs(step) > 1 || Math.floor(next / length) === Math.floor(here / length);
    if (next >= 0 && next < patches.length && inLine) read(next, true);
  });
}

// Every other chart is read off too: at the pointer, under a finger, or by the arrow keys once it has the focus. The
// charts of a figure are one stop of the Tab key: left and right go from point to point, up and down from series to
// series, and on into the next chart.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
const NEAR = 40; // pixels from the pointer to a point of a line

function readings(chart) {
  const found = new Map(); // by words: a circle and the mark in its middle are one
  const heading = chart.parentElement.querySelector("figcaption")?.textContent.trim() || "";
  const add = (element, x, y, hint) => {
    const text = hint.startsWith(heading) || element.dataset.name ? hint : `${heading} · ${hint}`;
    const series = [...element.classList].find((name) => /^n\d+$/.test(name)) || "";
    if (!found.has(text)) found.set(text, { chart, element, series, x, y, hint, text });
  };
  for (const element of chart.querySelectorAll("[data-hint], [data-read]")) {
    if (!element.checkVisibility()) continue;
    const { name, across, up, read, hint } = element.dataset;
    if (read === undefined) {
      const box = element.getBBox();
      add(element, box.x + box.width / 2, box.y + box.height / 2, hint);
      continue;
    }
    const places = element.getAttribute("d").slice(1).split("L");
    read.split(",").forEach((pair, index) => {
      const [x, y] = places[index].split(" ").map(Number);
      const [first, second] = pair.split(" ");
      add(element, x, y, `${name}: ${across} ${first}, ${up} ${second}`);
    });
  }
  const number = (one) => Number(one.series.slice(1)); // as the legend has them
  return [...found.values()].sort((a, b) => number(a) - number(b));
}

function onScreen({ chart, x, y }) {
  return new DOMPoint(x, y).matrixTransform(chart.getScreenCTM());
}

function showReading(reading, aloud) {
  hideReading();
  const point = document.createElementNS(reading.chart.namespaceURI, "circle");
  for (const [name, value] of Object.entries({ class: "point", cx: reading.x, cy: reading.y, r: 7 })) point.setAttribute(name, value);
  reading.chart.append(point);
  tip.textContent = reading.text;
  tip.hidden = false;
  const place = onScreen(reading);
  const left = Math.min(Math.max(place.x - tip.offsetWidth / 2, 8), document.documentElement.clientWidth - tip.offsetWidth - 8);
  const above = place.y - tip.offsetHeight - 12;
  tip.style.left = left + scrollX + "px";
  tip.style.top = (above > 4 ? above : place.y + 14) + scrollY + "px";
  if (aloud) document.getElementById("status").textContent = reading.text;
}

function hideReading() {
  tip.hidden = true;
  document.querySelector(".chart .point")?.remove();
}

for (const panels of document.querySelectorAll(".panels")) {
  const charts = [...panels.querySelectorAll(".chart:not(.readable)")];
  const known = new Map(); // found when a chart is first looked at
  document.addEventListener("change", () => known.clear()); // other methods are shown
  const of = (chart) => known.get(chart) || known.set(chart, readings(chart)).get(chart);
  let here = null;
  const go = (reading, aloud) => {
    here = reading;
    charts.forEach((chart) => (chart.tabIndex = chart === reading.chart ? 0 : -1));
    if (aloud && document.activeElement !== reading.chart) reading.chart.focus();
    showReading(reading, aloud);
  };
  const step = (key) => {
    const all = charts.flatMap(of);
    const index = all.indexOf(here);
    if (index < 0) return all[0];
    const side = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    if (key === "ArrowLeft" || key === "ArrowRight") return all[index + side] || here;
    const same = (one, other) => one.chart === other.chart && one.series === other.series;
    let other = index;
    while (all[other] && same(all[other], here)) other += side;
    if (!all[other]) return here;
    const line = all.filter((one) => same(one, all[other]));
    return line.reduce((best, one) => (Math.abs(one.x - here.x) < Math.abs(best.x - here.x) ? one : best));
  };
  charts.forEach((chart, number) => {
    chart.tabIndex = number ? -1 : 0;
    for (const event of ["pointermove", "pointerdown"])
      chart.addEventListener(event, (moved) => {
        const found = nearest(of(chart), moved);
        if (found) go(found, false);
        else hideReading();
      });
    for (const event of ["pointerleave", "blur"]) chart.addEventListener(event, hideReading);
    chart.addEventListener("focus", () => {
      if (!chart.matches(":focus-visible") || here?.chart === chart) return;
      if (of(chart).length) go(of(chart)[0], true);
    });
    chart.addEventListener("keydown", (pressed) => {
      if (pressed.key === "Escape") return hideReading();
      if (!/^Arrow/.test(pressed.key) || !of(chart).length) return;
      pressed.preventDefault();
      go(tip.hidden && here?.chart === chart ? here : step(pressed.key), true);
    });
  });
}

function nearest(all, { target, clientX, clientY }) {
  const own = all.filter((one) => one.element === target || (target.dataset.hint && one.hint === target.dataset.hint));
  const away = (one) => {
    const place = onScreen(one);
    return Math.hypot(place.x - clientX, place.y - clientY);
  };
  const near = own.length ? own : all.filter((one) => away(one) <= NEAR);
  return near.length ? near.reduce((best, one) => (away(one) < away(best) ? one : best)) : null;
}
