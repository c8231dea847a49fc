// Applies the chosen theme before the first paint.
document.documentElement.dataset.theme = localStorage.getItem("mnemic.theme") ?? "system";
