// Tables sort by a click on a column's head: down, up, as they were. A page opened with ?sort=<table>:<column>:<down|up> starts sorted.
(function () {
  "use strict";
  var NEXT = { "": "down", down: "up", up: "" };

  // A row and the rows that belong to it.
  function units(body) {
    var found = [];
    Array.prototype.forEach.call(body.rows, function (row) {
      if (row.classList.contains("group")) return;
      if (row.classList.contains("second") && found.length) found[found.length - 1].push(row);
      else found.push([row]);
    });
    return found;
  }

  function compare(column, numeric) {
    return function (a, b) {
      var x = a[0].cells[column].textContent.trim(), y = b[0].cells[column].textContent.trim();
      if (!numeric) return x.localeCompare(y, "en", { numeric: true });
      return parseFloat(x) - parseFloat(y);
    };
  }

  function known(column, numeric) {
    return function (unit) {
      var text = unit[0].cells[column].textContent.trim();
      return numeric ? !isNaN(parseFloat(text)) : text !== "";
    };
  }

  function restore(table) {
    if (!table.own) return;
    table.own.forEach(function (kept) {
      kept.units.forEach(function (unit) { unit.forEach(function (row) { kept.body.appendChild(row); }); });
    });
    if (table.sorted) table.sorted.remove();
    table.sorted = null;
    table.classList.remove("sorted");
  }

  function sort(table, column, direction) {
    var heads = table.tHead.rows[table.tHead.rows.length - 1].cells, head = heads[column];
    if (!table.own) {
      table.own = Array.prototype.map.call(table.tBodies, function (body) { return { body: body, units: units(body) }; });
    }
    restore(table);
    Array.prototype.forEach.call(heads, function (cell) { cell.removeAttribute("aria-sort"); });
    if (!direction) return;
    head.setAttribute("aria-sort", direction === "down" ? "descending" : "ascending");
    var numeric = head.classList.contains("n"), has = known(column, numeric), order = compare(column, numeric);
    var all = Array.prototype.concat.apply([], table.own.map(function (kept) { return kept.units; }));
    // Sorting is stable; what has no value stays last either way.
    var valued = all.filter(has).sort(function (a, b) { return direction === "down" ? order(b, a) : order(a, b); });
    table.sorted = table.appendChild(document.createElement("tbody"));
    valued.concat(all.filter(function (unit) { return !has(unit); })).forEach(function (unit) {
      unit.forEach(function (row) { table.sorted.appendChild(row); });
    });
    table.classList.add("sorted");
  }

  function start(table) {
    var heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    Array.prototype.forEach.call(heads, function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        var now = { descending: "down", ascending: "up" }[head.getAttribute("aria-sort")] || "";
        sort(table, column, NEXT[now]);
      });
    });
  }

  Array.prototype.forEach.call(document.querySelectorAll("table.sortable"), start);
  new URLSearchParams(window.location.search).getAll("sort").forEach(function (asked) {
    var parts = asked.split(":"), table = document.getElementById(parts[0]);
    if (table && table.tHead) sort(table, Number(parts[1]), parts[2] || "down");
  });

  // A link into something that is folded up opens it; paper has nothing to unfold.
  function reveal() {
    var target = document.getElementById(decodeURIComponent(window.location.hash.slice(1)));
    for (var node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  if (window.location.hash) reveal();
  var folded = [];
  window.addEventListener("beforeprint", function () {
    folded = Array.prototype.slice.call(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (node) { node.open = true; });
  });
  window.addEventListener("afterprint", function () { folded.forEach(function (node) { node.open = false; }); });
})();
