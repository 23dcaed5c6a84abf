"use strict";
// Tables sort by the value behind each cell; numbers from the largest at first, text from A; empty cells stay last.
for (const button of document.querySelectorAll("table.sortable th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const body = heading.closest("table").tBodies[0];
    const place = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    const known = heading.getAttribute("aria-sort");
    const descending = known === null ? numeric : known === "ascending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => row.cells[place].dataset.value;
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const numbers = [Number(x), Number(y)];
      const less = numbers.some(Number.isNaN) ? x.localeCompare(y, "en") : numbers[0] - numbers[1];
      return descending ? -less : less;
    };
    body.append(...Array.from(body.rows).sort(order));
  });
}
// In a small window the style sheet shows rows of a table that is too wide as a name and values behind their headings.
const fit = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const table = target.querySelector("table");
    table.classList.remove("cards");
    if (target.scrollWidth <= target.clientWidth) continue;
    table.classList.add("cards");
    const titles = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      for (const cell of Array.from(row.cells).slice(1)) cell.dataset.label = titles[cell.cellIndex];
    }
  }
});
for (const box of document.querySelectorAll(".scroll:has(> table)")) fit.observe(box);
// Sections and rows that hold the words that are searched for; all of them while nothing is.
const search = document.querySelector("input[type=search]");
search?.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (item) => words.every((word) => item.textContent.toLowerCase().includes(word));
  for (const details of document.querySelectorAll("main > details")) {
    details.hidden = !holds(details);
    details.open = words.length > 0 && !details.hidden;
    const named = holds(details.querySelector("summary"));
    for (const row of details.querySelectorAll("tbody tr")) row.hidden = !named && !holds(row);
  }
});
// On paper nothing can be unfolded.
const closed = [];
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    closed.push(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of closed.splice(0)) details.open = false;
});
