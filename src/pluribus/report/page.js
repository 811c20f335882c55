"use strict";
// Tables are sorted by the buttons in their heads: the better end first, then the other way.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const opposite = { ascending: "descending", descending: "ascending" };
      const order = opposite[now] || button.dataset.first;
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(a.cells[column].dataset.sort, b.cells[column].dataset.sort, column, order));
      table.tBodies[0].append(...rows);
      const status = document.getElementById("status");
      status.textContent = "Sorted by " + button.textContent.trim() + ", " + order + ".";
    });
  });
}

function compare(first, second, column, order) {
  if (first === "" || second === "") return (first === "") - (second === ""); // what is missing stays last
  const sign = order === "ascending" ? 1 : -1;
  if (column === 0) return sign * first.localeCompare(second, undefined, { numeric: true });
  return sign * (Number(first) - Number(second));
}

// A legend brings one series forward: while the pointer or the focus is on it, or for good when it is pressed.
for (const legend of document.querySelectorAll(".legend")) {
  const marks = legend.parentElement.querySelectorAll(".panels [class*=' n']");
  const show = (chosen) => {
    for (const mark of marks) {
      const own = mark.classList.contains("n" + chosen);
      mark.classList.toggle("dimmed", chosen !== null && !own);
      mark.classList.toggle("forward", own);
    }
  };
  const pressed = () => {
    const button = legend.querySelector("[aria-pressed='true']");
    return button ? button.dataset.series : null;
  };
  for (const button of legend.querySelectorAll("button")) {
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => show(button.dataset.series));
    for (const event of ["pointerleave", "blur"]) button.addEventListener(event, () => show(pressed()));
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of legend.querySelectorAll("button")) other.setAttribute("aria-pressed", String(on && other === button));
      show(pressed());
    });
  }
}
