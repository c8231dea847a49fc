// A chart of numbers along time or another axis, on uPlot, in the colours of the theme.
import { html, useEffect, useRef } from "./vendor/preact.js";
import UPlot from "./vendor/uplot.js";

/** The colour of a design token as the browser computes it, for a canvas, which knows no CSS variables. */
export function color(token) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${token})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * `data` is uPlot's: an array of x (seconds for times), then one array per series. `series` are uPlot's without the
 * one of x; `token` names a series' colour. `options` are merged into uPlot's. `label` is read to those who cannot see it.
 */
export function Chart({ data, series, label, height = 200, options = {} }) {
  const place = useRef(null);
  const plot = useRef(null);
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const node = place.current;
    const draw = () => {
      plot.current?.destroy();
      const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      plot.current = new UPlot(
        {
          width: node.clientWidth,
          height,
          legend: { show: false },
          ...options,
          axes: (options.axes ?? [{}, {}]).map((given) => ({ ...axis, ...given })),
          series: [{}, ...series.map(({ token = "accent", ...one }) => ({ stroke: color(token), width: 1.5, points: { show: false }, ...one }))],
        },
        latest.current,
        node,
      );
    };
    draw();
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: node.clientWidth, height }));
    sized.observe(node);
    window.addEventListener("mnemic-theme", draw);
    return () => {
      window.removeEventListener("mnemic-theme", draw);
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [series, height, options]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${place}></div>`;
}
