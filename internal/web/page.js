// Replaces the page's content by a fresh copy while the page is visible. Without this script the browser reloads the page.
(function () {
  "use strict";
  var every = Number(document.getElementById("node").dataset.refresh);
  var received = Date.now(); // when the shown content was received
  var fetching = false;

  function openDetails() {
    return Array.from(document.querySelectorAll("#node details[open]"), function (d) { return d.id; });
  }

  async function refresh() {
    if (document.hidden || fetching) return;
    fetching = true;
    try {
      // An unreachable node often does not answer at all.
      var answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(every) });
      if (!answer.ok) throw new Error(answer.statusText);
      var page = new DOMParser().parseFromString(await answer.text(), "text/html");
      var fresh = page.getElementById("node");
      if (!fresh) return location.reload();
      openDetails().forEach(function (id) {
        var d = fresh.querySelector("#" + CSS.escape(id));
        if (d) d.open = true;
      });
      document.title = page.title;
      document.getElementById("node").replaceWith(document.adoptNode(fresh));
      received = Date.now();
    } catch (e) {
      document.getElementById("lost").hidden = false;
    } finally {
      fetching = false;
    }
  }

  // Shows the age that the exporter reported plus the time since: the clocks of node and browser may differ.
  function updateAge() {
    var read = document.querySelector("#node time");
    if (!read) return;
    var s = Number(read.dataset.age) + Math.floor((Date.now() - received) / 1000);
    read.textContent = (s < 1 ? "less than 1 s" : s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h") + " ago";
  }

  setInterval(refresh, every);
  setInterval(updateAge, 1000);
  document.addEventListener("visibilitychange", refresh);
})();
