// Replaces each chart, drawn already, by one that answers the pointer, fits the window and follows its colours.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const charts = [...document.querySelectorAll(".chart")];
const GAP = 52; // between facets, as the chart was laid out
const AXIS = 44; // beside the first facet

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const [ink, quiet, rule, grid] = ["--ink", "--quiet", "--rule", "--grid"].map(of);
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: "transparent",
    font,
    axis: { labelColor: quiet, titleColor: quiet, domainColor: rule, tickColor: rule, gridColor: grid },
    header: { labelColor: ink },
    legend: { labelColor: ink },
    title: { color: ink },
  };
}

function fitted(spec, width) {
  const facets = Math.max(...spec.vconcat.map((block) => new Set(values(spec, block).map((row) => row[block.facet.field])).size));
  const columns = width < 560 ? 1 : Math.min(3, facets);
  const cell = Math.min(420, Math.floor((width - AXIS - GAP * (columns - 1) - 8) / columns));
  for (const block of spec.vconcat) {
    block.columns = columns;
    block.spec.width = cell;
  }
  const legends = width < 560 ? 2 : 6;
  return JSON.parse(JSON.stringify(spec), (key, value) => (key === "legend" && value && value.columns ? { ...value, columns: legends } : value));
}

function values(spec, block) {
  const data = block.data ?? spec.data;
  return data.values ?? spec.datasets[data.name];
}

// The numbers of a point, without the fields that the chart adds for its own use.
function told(value, sanitize) {
  const rows = Object.entries(value).filter(([name]) => !name.startsWith("facet_"));
  const cell = (kind, text) => `<td class="${kind}">${sanitize(text)}</td>`;
  return `<table>${rows.map(([name, text]) => `<tr>${cell("key", name)}${cell("value", text)}</tr>`).join("")}</table>`;
}

async function draw(chart) {
  const spec = JSON.parse(document.getElementById(chart.id.replace("chart-", "spec-")).textContent);
  const width = chart.parentElement.clientWidth;
  const { config, ...rest } = fitted(spec, width);
  const own = colours();
  for (const key of Object.keys(config)) own[key] = typeof config[key] === "object" ? { ...config[key], ...own[key] } : own[key];
  const room = document.createElement("div");
  await window.vegaEmbed(room, { ...rest, config: own }, { actions: false, renderer: "svg", ast: true, logLevel: 1, tooltip: { formatTooltip: told } });
  chart.replaceChildren(room);
  chart.classList.add("live");
  chart.dataset.width = width;
}

function drawAll() {
  for (const chart of charts) draw(chart).catch((error) => console.error(error));
}

let waiting;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (charts.some((chart) => Number(chart.dataset.width) !== chart.parentElement.clientWidth)) drawAll();
  }, 200);
});
dark.addEventListener("change", drawAll);
drawAll();
