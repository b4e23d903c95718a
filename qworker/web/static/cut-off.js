// Says that figures are old while the dashboard cannot be reached: nothing but htmx knows of its stream.
const cutOff = (is) => document.body.classList.toggle("cut-off", is);
document.addEventListener("htmx-sse-error", () => cutOff(true));
document.addEventListener("htmx-sse-after-connection", () => cutOff(false));
