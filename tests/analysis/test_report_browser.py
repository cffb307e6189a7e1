"""The report page in a real headless browser: no sideways scrolling of the page, sorting, unfolding. Skips without chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .test_report import site  # noqa: F401  (a fixture)

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install -y --no-install-recommends chromium"),
]
# What a table's first column reads from top to bottom, rows that are not shown left out.
LABELS = """
function labels(id) {
  return Array.prototype.filter.call(document.querySelectorAll('#' + id + ' tbody tr'), function (r) { return r.offsetParent !== null; })
    .map(function (r) { return r.cells[0].innerText.trim(); });
}
function click(id, column) { document.querySelectorAll('#' + id + ' thead tr:last-child button')[column].click(); }
"""


# A window of this browser is 500 wide at least, a frame is as narrow as a phone; it has the media queries and the innerWidth of its own.
FRAME = """<!DOCTYPE html><title>frame</title><script>
window.addEventListener('message', function (e) {{ document.documentElement.dataset.probe = e.data; }});
</script><iframe src="probe.html{query}" style="border:0;width:{width}px;height:900px"></iframe>"""


def answer(page: Path, script: str, *, width: int = 1280, query: str = "") -> dict:
    """What ``script`` returns in the page ``width`` wide. The page is a copy beside the original with the script at its end."""
    probe = f"{LABELS}; parent.postMessage(JSON.stringify((function () {{ {script} }})()), '*');"
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{probe}</script></body>")
    page.with_name("probe.html").write_text(text, encoding="utf-8")
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(query=html.escape(query), width=width), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1400,1000"]
    command = [str(CHROMIUM), *flags, "--virtual-time-budget=10000", "--dump-dom", frame.as_uri()]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-probe="([^"]*)"', out.stdout)
    assert found, out.stderr
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize("width", [1280, 390])
def test_page_does_not_scroll_sideways(site, width: int):  # noqa: F811
    script = """
      document.querySelectorAll('details').forEach(function (d) { d.open = true; });
      var wide = Array.prototype.filter.call(document.querySelectorAll('main *'), function (e) {
        return !e.closest('.scroll') && e.getBoundingClientRect().right > window.innerWidth + 0.5; });
      return {window: window.innerWidth, page: document.documentElement.scrollWidth, body: document.body.scrollWidth,
              wide: wide.map(function (e) { return e.tagName + '#' + e.id; }),
              scrolls: Array.prototype.filter.call(document.querySelectorAll('.scroll'),
                                                   function (e) { return e.scrollWidth > e.clientWidth; }).length,
              images: Array.prototype.every.call(document.images, function (i) { return i.complete && i.naturalWidth > 0; })};"""
    found = answer(site[2], script, width=width)
    assert found["window"] == width
    assert found["page"] <= width
    assert found["body"] <= width
    assert found["wide"] == []
    assert found["images"]
    # On a phone the tables scroll within their boxes.
    if width == 390:
        assert found["scrolls"] > 3


def test_clicks_sort_down_then_up_then_back(site):  # noqa: F811
    script = """
      var table = document.getElementById('table2-1'), head = table.querySelectorAll('thead tr:last-child th')[1], seen = [labels('table2-1')];
      var states = [];
      for (var k = 0; k < 3; k++) { click('table2-1', 1); seen.push(labels('table2-1')); states.push(head.getAttribute('aria-sort')); }
      return {seen: seen, states: states};"""
    found = answer(site[2], script)
    before, down, up, after = found["seen"]
    assert found["states"] == ["descending", "ascending", None]
    assert after == before
    assert "Component removed" in before  # the groups' headings
    # With values: GRAFT 75, GRPO 25; a group stands before each label once they are mixed. What has no value stays last.
    assert [label.split(": ")[-1] for label in down[:2]] == ["GRAFT (full)", "GRPO, n = 8"]
    assert [label.split(": ")[-1] for label in up[:2]] == ["GRPO, n = 8", "GRAFT (full)"]
    assert down[2:] == up[2:]
    assert sorted(label.split(": ")[-1] for label in down) == sorted(
        label for label in before if label in {x.split(": ")[-1] for x in down}
    )


def test_a_link_can_ask_for_an_order(site):  # noqa: F811
    script = """
      return {labels: labels('table2-1').slice(0, 2),
              sorted: document.querySelectorAll('#table2-1 thead [aria-sort=ascending]').length,
              others: document.querySelectorAll('table.sorted').length};"""
    found = answer(site[2], script, query="?sort=table2-1:1:up&sort=nothing:0:up")
    assert [label.split(": ")[-1] for label in found["labels"]] == ["GRPO, n = 8", "GRAFT (full)"]
    assert (found["sorted"], found["others"]) == (1, 1)


def test_print_unfolds_everything_and_folds_it_again(site):  # noqa: F811
    script = """
      var count = function () { return document.querySelectorAll('details:not([open])').length; }, before = count();
      window.dispatchEvent(new Event('beforeprint')); var during = count();
      window.dispatchEvent(new Event('afterprint'));
      return {before: before, during: during, after: count()};"""
    found = answer(site[2], script)
    assert found["before"] == found["after"] > 5
    assert found["during"] == 0


def test_screenshots(site, tmp_path: Path):  # noqa: F811
    for width in (1280, 390):
        shot = tmp_path / f"{width}.png"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", f"--screenshot={shot}"]
        subprocess.run([str(CHROMIUM), *flags, site[2].as_uri()], capture_output=True, timeout=120, check=True)
        # A page that is not drawn is one colour and compresses to a few kilobytes.
        assert shot.stat().st_size > 20_000
