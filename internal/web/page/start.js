if (!document.hidden) openStream();
setInterval(check, refreshMS);
setInterval(showAge, 1000);
document.addEventListener("visibilitychange", followVisibility);
