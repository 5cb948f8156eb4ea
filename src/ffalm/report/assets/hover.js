// Shows the numbers of the round nearest to the pointer in each panel of curves.
const SVG = "http://www.w3.org/2000/svg";

function element(name, parent, attributes, text) {
  const made = parent.appendChild(parent instanceof SVGElement ? document.createElementNS(SVG, name) : document.createElement(name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const short = (value) => Number(value.toPrecision(3));

for (const panel of document.querySelectorAll(".panel")) {
  const svg = panel.querySelector("svg");
  const curves = JSON.parse(panel.querySelector("script").textContent); // points: x, y, round, mean, lowest, highest
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))];
  const guide = element("g", svg, { class: "guide" });
  const tip = element("div", panel, { class: "tip", "aria-hidden": "true" });
  tip.hidden = true;

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const { width, height } = svg.viewBox.baseVal;
    const pointer = ((event.clientX - box.left) / box.width) * width;
    const x = places.reduce((best, one) => (Math.abs(one - pointer) < Math.abs(best - pointer) ? one : best));
    const found = curves.map((curve) => ({ ...curve, point: curve.points.find((point) => point[0] === x) })).filter((curve) => curve.point);
    guide.replaceChildren();
    tip.replaceChildren();
    element("line", guide, { x1: x, x2: x, y1: 14, y2: height - 42 });
    const table = element("table", tip, {});
    element("td", element("tr", table, {}), { colspan: 3 }, `round ${found[0].point[2]}`);
    for (const { name, colour, point } of found) {
      const [, y, , mean, low, high] = point;
      element("circle", guide, { class: `c${colour}`, cx: x, cy: y, r: 4 });
      const row = element("tr", table, {});
      element("th", row, { class: `c${colour}` }, name);
      element("td", row, {}, short(mean));
      element("td", row, {}, high > low ? `(${short(low)} to ${short(high)})` : "");
    }
    const left = (x / width) * box.width;
    tip.hidden = false;
    tip.style.left = x < width / 2 ? `${left + 12}px` : "auto";
    tip.style.right = x < width / 2 ? "auto" : `${box.width - left + 12}px`;
  });
  svg.addEventListener("pointerleave", () => {
    guide.replaceChildren();
    tip.hidden = true;
  });
}
