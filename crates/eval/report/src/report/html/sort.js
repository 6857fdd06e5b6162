// Tables sort by the column whose head is clicked (or entered); again turns the order round. The page
// is whole without this.
"use strict";
const units = { KiB: 1024, MiB: 1048576, GiB: 1073741824, "µs": 1e-6, ms: 1e-3 };
function key(cell) {
  const text = cell.textContent.trim();
  const found = text.replace(/−/g, "-").match(/^([+-]?[0-9][0-9.,]*(?:e[+-]?[0-9]+)?)\s*([A-Za-zµ]*)/);
  const number = found ? parseFloat(found[1].replace(/,/g, "")) * (units[found[2]] || 1) : NaN;
  return { number, text };
}
function compare(a, b) {
  if (!isNaN(a.number) && !isNaN(b.number) && a.number !== b.number) return a.number - b.number;
  if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;
  return a.text.localeCompare(b.text);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const head = table.rows[0];
  for (const cell of head.cells) {
    cell.tabIndex = 0;
    cell.setAttribute("role", "button");
    cell.title = "sort by this column";
    const sort = () => {
      const falls = cell.getAttribute("aria-sort") === "ascending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const rows = [...table.rows].slice(1);
      const sign = falls ? -1 : 1;
      const column = cell.cellIndex;
      rows.sort((a, b) => sign * compare(key(a.cells[column]), key(b.cells[column])));
      for (const row of rows) row.parentNode.appendChild(row);
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  }
}
