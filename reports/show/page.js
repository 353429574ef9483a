"use strict";

// Tables: a click or a key on a heading sorts by that column; another one turns the order. Gaps stay at the end.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table.tBodies[0], column, down ? -1 : 1);
    });
  });
}

function sort(body, column, direction) {
  const rows = [...body.rows].map((row) => ({ row, cell: row.cells[column] }));
  rows.sort((one, two) => compare(one.cell, two.cell, direction));
  body.append(...rows.map(({ row }) => row));
}

function compare(one, two, direction) {
  const [a, b] = [one.dataset.value, two.dataset.value];
  if (a !== undefined && b !== undefined) return direction * (Number(a) - Number(b));
  if (a !== undefined || b !== undefined) return a !== undefined ? -1 : 1;
  return direction * one.textContent.localeCompare(two.textContent, undefined, { numeric: true });
}

// Figures: a click fills the screen with one; Escape, the button or a click beside it puts it back.
const dialog = document.querySelector("dialog");
let home = null;
for (const button of document.querySelectorAll("button.zoom")) {
  button.addEventListener("click", () => {
    home = button;
    button.style.minHeight = `${button.offsetHeight}px`; // the page behind keeps its place
    dialog.append(...button.childNodes);
    dialog.showModal();
  });
}
dialog.addEventListener("close", () => {
  home.append(...[...dialog.childNodes].filter((node) => node !== dialog.firstElementChild));
  home.focus();
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target === dialog.firstElementChild) dialog.close();
});

// The gallery: a choice hides the studies without this verdict or agreement, and systems without studies.
const filters = document.querySelector(".filters");
if (filters) {
  const choices = [...filters.querySelectorAll("select")];
  const studies = [...document.querySelectorAll("article.study")];
  const filter = () => {
    for (const study of studies) {
      study.hidden = choices.some(({ value, dataset }) => value && !study.dataset[dataset.filter].split("|").includes(value));
    }
    for (const system of document.querySelectorAll(".system")) {
      system.hidden = ![...system.querySelectorAll("article")].some((study) => !study.hidden);
    }
    const shown = studies.filter((study) => !study.hidden).length;
    filters.querySelector("output").textContent = `${shown} of ${studies.length} studies`;
  };
  filters.addEventListener("change", filter);
  filters.hidden = false;
  filter();
}

// A link to a folded part opens it.
const unfold = () => {
  const part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (part?.tagName === "DETAILS") part.open = true;
};
addEventListener("hashchange", unfold);
unfold();

// Light or dark, for as long as the page is open.
const theme = document.querySelector("button.theme");
const root = document.documentElement;
const isDark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
theme.hidden = false;
label();

// What is folded is printed too.
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
