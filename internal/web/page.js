// Puts a fresh copy of the page's content in place while somebody looks. Without this script the browser reloads.
(function () {
  "use strict";
  var every = Number(document.getElementById("node").dataset.refresh);

  function opened() {
    return Array.from(document.querySelectorAll("#node details[open]"), function (d) { return d.id; });
  }

  async function refresh() {
    if (document.hidden) return;
    try {
      var answer = await fetch(location.href, { cache: "no-store" });
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
    } catch (e) {
      document.getElementById("lost").hidden = false;
    }
  }

  setInterval(refresh, every);
  document.addEventListener("visibilitychange", refresh);
})();
