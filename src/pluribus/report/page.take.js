// Every figure and table can be taken away: SVG and PNG of a chart, CSV and LaTeX of a table. All is made here, offline.
const LOOKS = {
  fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", "stroke-linejoin": "miter",
  "fill-opacity": "1", "stroke-opacity": "1", opacity: "1", "paint-order": "normal", "font-weight": "400",
};
const FONT = "Helvetica, Arial, sans-serif";
const GAP = 18; // between panels

function plainColour(value) {
  const parts = value.match(/^color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)/); // other programs do not know color-mix
  return parts ? `rgb(${parts.slice(1).map((part) => Math.round(255 * Number(part))).join(", ")})` : value.replaceAll('"', "");
}

// A copy that looks the same without the page's style.
function bare(original) {
  const copy = original.cloneNode(true);
  const pairs = [[original, copy]];
  [...original.querySelectorAll("*")].forEach((one, index) => pairs.push([one, copy.querySelectorAll("*")[index]]));
  for (const [one, other] of pairs) {
    const style = getComputedStyle(one);
    for (const [name, usual] of Object.entries(LOOKS)) {
      const value = plainColour(style.getPropertyValue(name));
      if (value !== usual) other.setAttribute(name, value);
      else other.removeAttribute(name);
    }
    if (one.tagName === "text") other.setAttribute("font-size", style.fontSize);
    for (const { name } of [...other.attributes]) if (/^(class|style|tabindex|role|aria-|data-)/.test(name)) other.removeAttribute(name);
    if (!one.dataset.hint) continue;
    const title = document.createElementNS(original.namespaceURI, "title");
    title.textContent = one.dataset.hint;
    other.prepend(title);
  }
  return copy;
}

function add(parent, name, attributes, text = "") {
  const element = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

// The panels of a figure with their headings and the legend, in one SVG; in light colours, for paper and slides.
function picture(figure) {
  document.documentElement.dataset.take = "";
  hideReading();
  try {
    const charts = [...figure.querySelectorAll(".panels svg.chart")];
    const columns = Math.min(charts.length, figure.querySelector(".panels").classList.contains("wide") ? 2 : 5);
    const sizes = charts.map((chart) => chart.viewBox.baseVal);
    const wide = Math.max(...sizes.map((size) => size.width));
    const root = charts[0].cloneNode(false);
    for (const { name } of [...root.attributes]) root.removeAttribute(name);
    const back = add(root, "rect", { fill: "#ffffff" });
    const headings = charts.map((chart) => chart.parentElement.querySelector("figcaption"));
    const head = headings.some(Boolean) ? 22 : 0;
    let top = GAP;
    for (let first = 0; first < charts.length; first += columns) {
      const row = charts.slice(first, first + columns);
      row.forEach((chart, column) => {
        const heading = headings[first + column];
        const left = GAP + column * (wide + GAP);
        if (heading) add(root, "text", { x: left, y: top + 14, "font-size": 13, "font-weight": 600, fill: plainColour(getComputedStyle(heading).color) }, heading.textContent);
        const copy = bare(chart);
        const size = sizes[first + column];
        for (const [name, value] of Object.entries({ x: left, y: top + head, width: size.width, height: size.height })) copy.setAttribute(name, value);
        root.append(copy);
      });
      top += head + Math.max(...sizes.slice(first, first + columns).map((size) => size.height)) + GAP;
    }
    const width = GAP + columns * (wide + GAP);
    const height = top + drawLegend(root, figure, width, top);
    const patterns = document.querySelector(".patterns defs");
    if (root.innerHTML.includes("url(#")) root.prepend(bare(patterns));
    for (const [name, value] of Object.entries({ width, height })) back.setAttribute(name, value);
    const whole = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": 12 };
    for (const [name, value] of Object.entries(whole)) root.setAttribute(name, value);
    const title = document.createElementNS(root.namespaceURI, "title");
    title.textContent = nameOf(figure);
    root.prepend(title);
    return { text: new XMLSerializer().serializeToString(root), width, height };
  } finally {
    delete document.documentElement.dataset.take;
  }
}

function drawLegend(root, figure, width, top) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "13px " + FONT;
  let [left, lines] = [GAP, 0];
  for (const button of figure.querySelectorAll(".legend button")) {
    const words = button.textContent.trim();
    const room = 28 + 6 + pen.measureText(words).width + 16;
    if (left + room > width && left > GAP) [left, lines] = [GAP, lines + 1];
    const swatch = bare(button.querySelector("svg"));
    for (const [name, value] of Object.entries({ x: left, y: top + 22 * lines, width: 28, height: 16 })) swatch.setAttribute(name, value);
    root.append(swatch);
    add(root, "text", { x: left + 34, y: top + 22 * lines + 12.5, "font-size": 13, fill: "#1b1f24" }, words);
    left += room;
  }
  return left > GAP ? 22 * (lines + 1) + GAP / 2 : 0;
}

async function pixels({ text, width, height }, scale = 3) {
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: width * scale, height: height * scale });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// ---------------------------------------------------------------- tables

function words(element) {
  const copy = element.cloneNode(true);
  copy.querySelectorAll(".hidden, .sign, small, svg").forEach((part) => part.remove());
  return copy.textContent.replace(/\s+/g, " ").trim();
}

// Rows of text: tables that were measured with the names and the numbers of the results, others as they are shown.
function cells(table) {
  const heads = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells]);
  if (!table.classList.contains("sortable")) return [heads.map(words), ...rows.map((row) => row.map(words))];
  const ended = heads.map((_, column) => rows.some((row) => row[column].dataset.low));
  const spread = (one, column) => (ended[column] ? [one(""), one("low"), one("high")] : [one("")]);
  const names = heads.slice(1).flatMap((head, i) => spread((end) => head.dataset.name + (end && "_" + end), i + 1));
  const values = (row) => row.slice(1).flatMap((cell, i) => spread((end) => cell.dataset[end || "sort"], i + 1));
  return [["method", "seeds", ...names], ...rows.map((row) => [row[0].dataset.sort, row[0].dataset.seeds, ...values(row)])];
}

function csv(table) {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return "\ufeff" + cells(table).map((row) => row.map(quoted).join(",") + "\r\n").join(""); // the mark of UTF-8 is for Excel
}

const TEX = {
  "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "&": "\\&", "%": "\\%", $: "\\$", "#": "\\#", _: "\\_", "~": "\\textasciitilde{}",
  "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$", "–": "--", "×": "$\\times$", "±": "$\\pm$", "↑": "$\\uparrow$",
  "↓": "$\\downarrow$", "≈": "$\\approx$", "→": "$\\to$", "≤": "$\\leq$", "≥": "$\\geq$", "·": "$\\cdot$", "°": "$^\\circ$", "²": "$^2$",
  "…": "\\ldots{}", "\u00a0": "~",
};

function latex(table) {
  const escaped = (text) => [...text].map((letter) => TEX[letter] ?? letter).join("");
  const shown = (cell) => {
    const small = cell.tagName === "TD" && cell.querySelector("small");
    const ends = small ? ` {\\scriptsize [${escaped(words(small).replace(" – ", ", "))}]}` : "";
    const value = escaped(words(cell));
    return (cell.classList.contains("best") ? `\\textbf{${value}}` : value) + ends;
  };
  const line = (row) => "  " + [...row.cells].map(shown).join(" & ") + " \\\\\n";
  const columns = [...table.tHead.rows[0].cells].map((_, i) => (i && table.classList.contains("sortable") ? "r" : "l")).join("");
  const body = [...table.tBodies[0].rows].map(line).join("");
  const parts = ["% \\usepackage{booktabs}", `\\begin{tabular}{${columns}}`, "  \\toprule"].join("\n");
  return `${parts}\n${line(table.tHead.rows[0])}  \\midrule\n${body}  \\bottomrule\n\\end{tabular}\n`;
}

// ---------------------------------------------------------------- buttons

function nameOf(part) {
  const heading = part.closest(".figure")?.querySelector("h3") || part.closest(".data")?.querySelector("h2");
  const caption = part.querySelector?.("caption")?.textContent.split(".")[0];
  return (caption || heading?.textContent || document.title).trim();
}

function save(part, ending, kind, content) {
  const file = nameOf(part).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: kind }));
  Object.assign(document.createElement("a"), { href: address, download: `${file || "pluribus"}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  document.getElementById("status").textContent = `Saved ${file}.${ending}.`;
}

function offer(place, figure, table) {
  const row = Object.assign(document.createElement("p"), { className: "take", textContent: "Save as" });
  const button = (title, act) => {
    const one = Object.assign(document.createElement("button"), { type: "button", textContent: title });
    one.append(Object.assign(document.createElement("span"), { className: "hidden", textContent: " of: " + nameOf(figure || table) }));
    one.addEventListener("click", act);
    row.append(one);
  };
  if (figure?.querySelector(".panels svg.chart")) {
    button("SVG", () => save(figure, "svg", "image/svg+xml", picture(figure).text));
    button("PNG", async () => save(figure, "png", "image/png", await pixels(picture(figure))));
  }
  if (table) {
    button("CSV", () => save(table, "csv", "text/csv", csv(table)));
    button("LaTeX", () => save(table, "tex", "text/x-tex", latex(table)));
  }
  if (row.children.length) place.after(row);
}

for (const figure of document.querySelectorAll(".figure")) offer(figure.querySelector(".caption"), figure, figure.querySelector("table"));
for (const box of document.querySelectorAll(".scroll")) if (!box.closest(".figure")) offer(box, null, box.querySelector("table"));
