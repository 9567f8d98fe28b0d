// Puts a fresh copy of the page's content in place while somebody looks. Without this script the browser reloads.
(function () {
  "use strict";
  var every = Number(document.getElementById("node").dataset.refresh);
  var came = Date.now(); // when what is shown was received
  var asking = false;

  function opened() {
    return Array.from(document.querySelectorAll("#node details[open]"), function (d) { return d.id; });
  }

  async function refresh() {
    if (document.hidden || asking) return;
    asking = true;
    try {
      // A node that is out of reach often says nothing at all.
      var answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(every) });
      if (!answer.ok) throw new Error(answer.statusText);
      var page = new DOMParser().parseFromString(await answer.text(), "text/html");
      var fresh = page.getElementById("node");
      if (!fresh) return location.reload();
      opened().forEach(function (id) {
        var d = fresh.querySelector("#" + CSS.escape(id));
        if (d) d.open = true;
      });
      document.title = page.title;
      document.getElementById("node").replaceWith(document.adoptNode(fresh));
      came = Date.now();
    } catch (e) {
      document.getElementById("lost").hidden = false;
    } finally {
      asking = false;
    }
  }

  // The age as the exporter gave it, and the time since: the clocks of node and browser may differ.
  function grow() {
    var read = document.querySelector("#node time");
    if (!read) return;
    var s = Number(read.dataset.age) + Math.floor((Date.now() - came) / 1000);
    read.textContent = (s < 1 ? "less than 1 s" : s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : Math.floor(s / 3600) + " h") + " ago";
  }

  setInterval(refresh, every);
  setInterval(grow, 1000);
  document.addEventListener("visibilitychange", refresh);
})();
