"use strict";
/* Draws strips. Colours and heights are those of a report's timeline: what is bad
   differs from what is good by height as well. */

const BITS = { good: 1, late: 2, bad: 4 };
const CAUSES = [
  "refused or unreachable", "connection cut", "the client's own timeout",
  "error packet from a server or proxy", "session state lost", "other",
];

/** The page's colours, as they are now. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const list = (name, count) => Array.from({ length: count }, (_, at) => colour(name + at));
  return {
    backends: list("--backend-", 6),
    unknown: colour("--backend-none"),
    causes: list("--cause-", 6),
    late: colour("--late"),
    noData: colour("--no-data"),
    panel: colour("--panel"),
    ink: colour("--ink"),
    soft: colour("--ink-soft"),
    line: colour("--line"),
    fault: colour("--fault"),
  };
}

/** Fits a canvas to its place on the page; gives back what to draw with. */
function fit(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** What a column looks like: the worst that touched it. */
function look(colours, bin) {
  if (bin === undefined || bin[3] === 0) {
    return { colour: colours.noData, share: 0.3 };
  }
  if (bin[3] & BITS.bad) {
    return { colour: colours.causes[bin[4]] || colours.causes[5], share: 1 };
  }
  if (bin[3] & BITS.late) {
    return { colour: colours.late, share: 0.85 };
  }
  const known = bin[5] > 0;
  return {
    colour: known ? colours.backends[(bin[5] - 1) % colours.backends.length] : colours.unknown,
    share: 0.6,
  };
}

/** One lane's strip from `from` to `to`, in ns after the begin. */
function drawStrip(canvas, colours, lane, faults, from, to, chosen) {
  const { context, width, height } = fit(canvas);
  const x = (ns) => ((ns - from) / (to - from)) * width;
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, height);
  drawSpans(context, colours, faults, x, height);
  const last = Math.floor(to / BIN_NS);
  const first = Math.max(Math.floor(from / BIN_NS), lane.first());
  for (let at = first; at <= last; at += 1) {
    const bin = lane.bin(at);
    if (bin === undefined && at > last - ON_THE_WAY) {
      continue; /* still on its way */
    }
    const { colour, share } = look(colours, bin);
    const left = Math.floor(x(at * BIN_NS));
    const right = Math.max(left + 1, Math.floor(x((at + 1) * BIN_NS)));
    const tall = Math.round(share * height);
    context.fillStyle = colour;
    context.fillRect(left, height - tall, right - left, tall);
  }
  for (const fault of faults) {
    const wide = fault.is_mark ? 1 : 2;
    context.fillStyle = colours.panel;
    context.fillRect(Math.round(x(fault.asked_ns)) - 1, 0, wide + 2, height);
    context.fillStyle = colours.fault;
    context.fillRect(Math.round(x(fault.asked_ns)), 0, wide, height);
  }
  if (chosen !== null && chosen >= first && chosen <= last) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.strokeRect(x(chosen * BIN_NS), 1, Math.max(2, x((chosen + 1) * BIN_NS) - x(chosen * BIN_NS)), height - 2);
  }
}

/** How long faults lasted, below the data; their lines go above it. */
function drawSpans(context, colours, faults, x, height) {
  for (const fault of faults) {
    const area = (from, until, alpha) => {
      if (until > from) {
        context.globalAlpha = alpha;
        context.fillStyle = colours.fault;
        context.fillRect(x(from), 0, x(until) - x(from), height);
        context.globalAlpha = 1;
      }
    };
    const seen = Math.max(fault.asked_ns, fault.seen_ns === null ? fault.asked_ns : fault.seen_ns);
    area(fault.asked_ns, seen, 0.3);
    if (fault.cleared_ns !== null) {
      area(seen, fault.cleared_ns, 0.12);
    }
  }
}

/** Seconds after the begin, and the faults' names. */
function drawAxis(canvas, colours, faults, from, to) {
  const { context, width } = fit(canvas);
  const x = (ns) => ((ns - from) / (to - from)) * width;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  const seconds = (to - from) / 1e9;
  const step = [1, 2, 5, 10, 20, 30, 60].find((s) => (s * width) / seconds >= 60) || 60;
  for (let at = Math.max(0, Math.ceil(from / 1e9 / step) * step); at * 1e9 <= to; at += step) {
    const place = x(at * 1e9);
    context.fillStyle = colours.line;
    context.fillRect(Math.round(place), 0, 1, 4);
    context.fillStyle = colours.soft;
    context.textAlign = place < 24 ? "left" : place > width - 24 ? "right" : "center";
    context.fillText(at + " s", place, 4);
  }
  let free = 0;
  context.fillStyle = colours.ink;
  for (const fault of faults) {
    const place = x(fault.asked_ns);
    const wide = context.measureText(fault.name).width;
    const left = Math.min(place, width - wide);
    if (place >= 0 && place <= width && left >= free) {
      context.textAlign = "left";
      context.fillText(fault.name, left, 18);
      free = left + wide + 8;
    }
  }
}

/** A swatch for the legend. */
function swatch(colour, share) {
  const canvas = document.createElement("canvas");
  canvas.width = 22;
  canvas.height = 12;
  const context = canvas.getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 12 - Math.round(12 * share), 22, Math.round(12 * share));
  return canvas;
}
