// Sorts a table by the column whose heading is clicked; rows stay under the heading of their section.
function key(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.sort ?? cell.textContent.trim();
  return value === "" || Number.isNaN(Number(value)) ? value : Number(value);
}

function compare(one, other, sign) {
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1; // either way, numbers before what has no value
  return sign * (typeof one === "number" ? one - other : one.localeCompare(other));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "Sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.ariaSort === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => row.cells.length === heads.length);
        rows.sort((one, other) => compare(key(one, column), key(other, column), falling ? -1 : 1));
        body.append(...rows);
      }
    });
  });
}
