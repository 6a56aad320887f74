"use strict";
/* Draws lanes and latencies on canvases that share one view of time; axes and
   labels are SVG above them. A pixel shows the worst of all that it covers. */

/** Room for names; less where the page is narrow. */
let LEFT = 196;
const NARROW = 640;
const RIGHT = 10;
const TOP = 26;
const SVG_NS = "http://www.w3.org/2000/svg";

/** The page's colours, as they are now. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const list = (name, count) => Array.from({ length: count }, (_, at) => colour(name + at));
  return {
    backends: list("--backend-", 6),
    several: colour("--backend-several"),
    unknown: colour("--backend-none"),
    causes: list("--cause-", 6),
    late: colour("--late"),
    noData: colour("--no-data"),
    page: colour("--page"),
    ink: colour("--ink"),
    line: colour("--line"),
    fault: colour("--fault"),
    soft: colour("--ink-soft"),
    series: ["--band", "--accent", "--second", "--third", "--fourth", "--fifth"].map(colour),
    hatches: new Map(),
  };
}

function hatch(colours, colour, context) {
  if (!colours.hatches.has(colour)) {
    const tile = document.createElement("canvas");
    tile.width = 6;
    tile.height = 6;
    const draw = tile.getContext("2d");
    draw.strokeStyle = colour;
    draw.lineWidth = 1.4;
    for (const shift of [-6, 0, 6]) {
      draw.beginPath();
      draw.moveTo(shift, 6);
      draw.lineTo(shift + 6, 0);
      draw.stroke();
    }
    colours.hatches.set(colour, tile);
  }
  return context.createPattern(colours.hatches.get(colour), "repeat");
}

function backendColour(colours, number) {
  if (number === SEVERAL_BACKENDS) {
    return colours.several;
  }
  return number === NO_BACKEND ? colours.unknown : colours.backends[number % colours.backends.length];
}

/** What a cell looks like: worst first. The share is of the strip's height, so
    that bad differs from good without any colour. */
function look(colours, cell) {
  const bits = cell.bits;
  if (bits & BITS.bad) {
    return { key: "b" + cell.cause, colour: colours.causes[Math.max(0, cell.cause)], share: 1 };
  }
  if (bits & BITS.late) {
    return { key: "l", colour: colours.late, share: 0.9 };
  }
  if (bits & BITS.waitedInVain) {
    return { key: "v", colour: colours.causes[1], share: 0.75, hatched: true };
  }
  if (bits & BITS.waitedLong) {
    return { key: "w", colour: colours.soft, share: 0.6, hatched: true };
  }
  if (bits & BITS.noData) {
    return { key: "n", colour: colours.noData, share: 0.45 };
  }
  if (bits & BITS.good) {
    return { key: "g" + cell.backend, colour: backendColour(colours, cell.backend), share: 0.6 };
  }
  if (bits & BITS.waited) {
    return { key: "s", colour: colours.soft, share: 0.3, hatched: true };
  }
  return null;
}

/** Round moments for the axis. */
function ticks(from, to, most) {
  const rough = (to - from) / most;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((head) => head * power).find((s) => s >= rough);
  const found = [];
  for (let k = Math.ceil(from / step); k * step <= to; k += 1) {
    found.push(k * step);
  }
  const digits = Math.max(0, -Math.floor(Math.log10(step / 1e9)));
  return found.map((ns) => [ns, (ns / 1e9).toFixed(Math.min(9, digits))]);
}

function svgElement(name, attributes, text) {
  const element = document.createElementNS(SVG_NS, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  if (text !== undefined) {
    element.textContent = text;
  }
  return element;
}

/** What witnesses saw of a fault while it took effect. */
function witnessed(fault) {
  return ["refused", "cut", "gone"].filter((name) => fault[name]);
}

/** A canvas with its overlay; `height` is known to whoever draws. */
class Plot {
  constructor(element, view) {
    this.element = element;
    this.view = view;
    this.canvas = element.querySelector("canvas");
    this.svg = element.querySelector("svg");
    this.context = this.canvas.getContext("2d");
  }

  /** Fits the canvas to the page; gives back the width in pixels. */
  fit(height) {
    const width = Math.max(320, this.element.clientWidth);
    LEFT = width < NARROW ? 116 : 196;
    const scale = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.style.height = height + "px";
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    this.svg.replaceChildren();
    return width;
  }

  get right() {
    return this.width - RIGHT;
  }

  x(ns) {
    const { from, to } = this.view;
    return LEFT + ((ns - from) / (to - from)) * (this.right - LEFT);
  }

  time(x) {
    const { from, to } = this.view;
    return from + ((x - LEFT) / (this.right - LEFT)) * (to - from);
  }

  add(name, attributes, text) {
    this.svg.appendChild(svgElement(name, attributes, text));
  }

  /** What lies under the data. */
  axis(colours, bottom) {
    this.areas(colours, bottom);
    this.context.fillStyle = colours.line;
    for (const [ns, text] of ticks(this.view.from, this.view.to, Math.max(4, (this.right - LEFT) / 90))) {
      const x = this.x(ns);
      this.context.fillRect(Math.round(x), TOP, 1, bottom - TOP);
      this.add("text", { x, y: bottom + 14, "text-anchor": "middle" }, text);
    }
    this.add("text", { x: LEFT - 8, y: bottom + 14, "text-anchor": "end" }, "s after the begin");
  }

  /** How long each fault lasted: from asked for through what was witnessed,
      then, fainter, until it was undone. */
  areas(colours, bottom) {
    const clamp = (x) => Math.min(this.right, Math.max(LEFT, x));
    const area = (from, to, alpha) => {
      const [a, b] = [clamp(this.x(from)), clamp(this.x(to))];
      if (b > a) {
        this.context.globalAlpha = alpha;
        this.context.fillStyle = colours.fault;
        this.context.fillRect(a, TOP, b - a, bottom - TOP);
        this.context.globalAlpha = 1;
      }
    };
    for (const fault of this.data.run.faults) {
      const seen = witnessed(fault);
      const until = Math.max(fault.asked[1], ...seen.map((name) => fault[name][1]));
      area(fault.asked[0], until, 0.22);
      if (fault.cleared) {
        area(until, fault.cleared[1], 0.09);
      } else if (fault.is_lasting) {
        area(until, fault.undone === null ? this.view.to : fault.undone, 0.09);
      }
    }
  }

  /** The moments of each fault: when it was asked for and what was witnessed. */
  faults(faults, bottom) {
    let labelled = LEFT;
    const shown = faults.filter((fault) => this.x(fault.asked[0]) >= LEFT && this.x(fault.asked[0]) <= this.right);
    for (const ns of this.data.run.resets) {
      const x = this.x(ns);
      if (x >= LEFT && x <= this.right) {
        this.add("path", { d: "M" + (x - 3) + " " + (TOP - 6) + "L" + (x + 3) + " " + (TOP - 6) + "L" + x + " " + TOP + "Z", class: "reset" });
      }
    }
    for (const fault of faults) {
      const seen = witnessed(fault);
      const line = (ns, extra) => {
        const x = this.x(ns);
        if (x >= LEFT && x <= this.right) {
          this.add("line", { x1: x, x2: x, y1: TOP - 6, y2: bottom, class: "fault" + extra });
        }
      };
      line(fault.asked[0], "");
      let named = this.x(fault.asked[0]);
      for (const name of [...seen, ...(fault.cleared ? ["cleared"] : [])].sort((a, b) => fault[a][1] - fault[b][1])) {
        line(fault[name][1], " witness");
        // Named once there is room between it and what was named before.
        const at = this.x(fault[name][1]);
        const wide = name.length * 6 + 6;
        if (shown.length <= 3 && at > named + 4 && at + wide < this.right && at >= LEFT) {
          this.add("text", { x: at + 3, y: TOP + 1 }, name);
          named = at + wide;
        }
      }
      const x = this.x(fault.asked[0]);
      const wide = fault.name.length * 6.8 + 8;
      const near = x + wide > this.right;
      if (x >= LEFT && x <= this.right && (near ? x - wide : x) >= labelled) {
        this.add("text", {
          x: near ? x - 4 : x + 4, y: TOP - 9, class: "strong", "text-anchor": near ? "end" : "start",
        }, fault.name);
        labelled = near ? x : x + wide;
      }
    }
  }
}

/** All lanes, strip by strip. */
class Timeline extends Plot {
  constructor(element, view, data) {
    super(element, view);
    this.data = data;
    this.chosen = null;
    this.layOut();
  }

  /** Where each lane and strip stands; it does not depend on the view. */
  layOut() {
    this.places = [];
    let y = TOP + 4;
    let target = null;
    const layBeliefs = () => {
      for (const belief of this.data.run.beliefs.filter((b) => b.target === target)) {
        this.places.push({ belief, y, tall: 12 });
        y += 15;
      }
    };
    for (const lane of this.data.run.lanes) {
      if (lane.target !== target) {
        layBeliefs();
        y += target === null ? 0 : 8;
        target = lane.target;
        this.places.push({ title: target, y });
        y += 18;
      }
      const count = lane.strips.length;
      const tall = Math.max(3, Math.min(12, Math.floor(96 / count)));
      const height = Math.max(15, count * tall);
      this.places.push({ lane, y, tall, height });
      y += height + 5;
    }
    layBeliefs();
    this.bottom = y;
  }

  draw(colours) {
    const width = this.fit(this.bottom + 22);
    this.axis(colours, this.bottom);
    for (const place of this.places) {
      if (place.title !== undefined) {
        this.add("text", { x: 2, y: place.y + 12, class: "strong" }, shorten(place.title, 30));
        this.drawViews(colours, place);
        continue;
      }
      if (place.belief) {
        this.drawBelief(colours, place);
        continue;
      }
      this.add("text", { x: LEFT - 8, y: place.y + Math.min(place.height, 22) / 2 + 4, "text-anchor": "end" },
        shorten(place.lane.name + " (" + place.lane.clients + ")", LEFT / 6.8));
      for (let strip = 0; strip < place.lane.strips.length; strip += 1) {
        this.drawStrip(colours, place, strip, width);
      }
    }
    this.faults(this.data.run.faults, this.bottom);
    this.drawChosen();
  }

  drawStrip(colours, place, strip, width) {
    const run = this.data.run;
    const top = place.y + strip * place.tall;
    const tall = place.tall - (place.tall > 4 ? 1 : 0);
    const context = this.context;
    let begin = LEFT;
    let before = null;
    const flush = (end) => {
      if (before) {
        const height = Math.max(1, tall * before.share);
        context.fillStyle = before.hatched ? hatch(colours, before.colour, context) : before.colour;
        context.fillRect(begin, top + (tall - height) / 2, end - begin, height);
      }
    };
    const last = Math.floor(width - RIGHT);
    for (let x = LEFT; x < last; x += 1) {
      const [from, to] = [this.time(x), this.time(x + 1)];
      let now = null;
      if (to > 0 && from < run.span_ns) {
        const [a, b] = columnsOf(run, from, to);
        now = look(colours, together(this.data, place.lane, strip, a, b));
      }
      if ((now && now.key) !== (before && before.key)) {
        flush(x);
        begin = x;
        before = now;
      }
    }
    flush(last);
    this.drawOnes(colours, place, strip, top, tall);
  }

  /** Begins of single samples, once there is room to tell them apart. */
  drawOnes(colours, place, strip, top, tall) {
    const lane = place.lane;
    const pixels = (this.right - LEFT) * (lane.interval_ns / (this.view.to - this.view.from));
    if (pixels < 10) {
      return;
    }
    const ones = this.data.ones;
    const end = lane.oneAt + lane.singles;
    for (let at = firstOne(this.data, lane, this.view.from); at < end && ones.due[at] <= this.view.to; at += 1) {
      if (ones.strip[at] !== strip) {
        continue;
      }
      const begun = ones.due[at] + ones.begunUs[at] * 1e3;
      const [a, b] = [this.x(begun), this.x(begun + ones.tookUs[at] * 1e3)];
      // At the foot of the strip, so that its colour stays to be seen.
      const foot = top + tall;
      const left = Math.max(LEFT, a);
      this.context.fillStyle = colours.ink;
      if (a >= LEFT) {
        this.context.fillRect(a - 0.6, foot - tall * 0.35, 1.2, tall * 0.35);
      }
      if (b > left + 1) {
        this.context.fillRect(left, foot - 1, Math.min(b, this.right) - left, 1);
      }
    }
  }

  /** What the proxy itself believed of its backends: a mark when it changed. */
  drawViews(colours, place) {
    for (const view of this.data.run.views) {
      const x = this.x(view.ns);
      if (view.target === place.title && x >= LEFT && x <= this.right) {
        this.context.fillStyle = colours.ink;
        this.context.beginPath();
        this.context.moveTo(x, place.y + 14);
        this.context.lineTo(x - 4, place.y + 6);
        this.context.lineTo(x + 4, place.y + 6);
        this.context.fill();
      }
    }
  }

  /** What the proxy held a backend for: a thin line for up, hatched for anything
      else. */
  drawBelief(colours, place) {
    const width = this.width;
    this.add("text", { x: LEFT - 8, y: place.y + 10, "text-anchor": "end" },
      shorten((width < NARROW ? "" : "it holds ") + place.belief.backend + " for", LEFT / 6.8));
    const context = this.context;
    let labelled = LEFT;
    for (const stretch of place.belief.stretches) {
      const from = Math.max(LEFT, this.x(stretch.from));
      const to = Math.min(this.right, this.x(stretch.to));
      if (to <= from) {
        continue;
      }
      if (stretch.is_up) {
        context.fillStyle = colours.soft;
        context.fillRect(from, place.y + 5, to - from, 2);
      } else {
        context.fillStyle = hatch(colours, colours.causes[1], context);
        context.fillRect(from, place.y + 1, Math.max(1, to - from), 10);
      }
      const wide = 14 + stretch.state.length * 7;
      if (to - from > wide && from + 3 >= labelled) {
        context.fillStyle = colours.page;
        context.fillRect(from + 2, place.y, wide - 4, 12);
        this.add("text", { x: from + 5, y: place.y + 10 }, stretch.state);
        labelled = from + wide;
      }
    }
  }

  /** What a proxy held a backend for at a place, in words. */
  tellBelief(x, y) {
    const place = this.places.find((p) => p.belief && y >= p.y && y < p.y + 15);
    const ns = this.time(x);
    const found = place && place.belief.stretches.find((s) => ns >= s.from && ns < s.to);
    return !found ? null : place.belief.target + " holds " + place.belief.backend + " for " + found.state +
      (found.check ? " (" + found.check + ")" : "") + "\n" + seconds(found.from) + " to " + seconds(found.to) +
      afterFault(this.data, found.from, 0);
  }

  /** The proxy's own views near a place, in words. */
  tellViews(x, y) {
    const place = this.places.find((p) => p.title !== undefined && y >= p.y && y < p.y + 18);
    if (!place) {
      return null;
    }
    const near = this.data.run.views.filter((view) =>
      view.target === place.title && Math.abs(this.x(view.ns) - x) <= 6);
    return near.length === 0 ? null : near.map((view) =>
      seconds(view.ns) + afterFault(this.data, view.ns, 0) + "\n" + view.text).join("\n");
  }

  drawChosen() {
    if (!this.chosen) {
      return;
    }
    const place = this.places.find((p) => p.lane === this.chosen.lane);
    const y = place.y + this.chosen.strip * place.tall;
    this.add("rect", { x: LEFT - 1, y: y - 1, width: this.right - LEFT + 2, height: place.tall + 1, class: "chosen" });
    if (this.chosen.ns !== undefined) {
      const x = this.x(this.chosen.ns);
      if (x >= LEFT && x <= this.right) {
        this.add("line", { x1: x, x2: x, y1: TOP, y2: this.bottom, class: "cursor" });
      }
    }
  }

  /** The strip at a height. */
  stripAt(y) {
    const place = this.places.find((p) => p.lane && y >= p.y && y < p.y + p.lane.strips.length * p.tall);
    return place ? { lane: place.lane, strip: Math.floor((y - place.y) / place.tall) } : null;
  }

  /** What is there to be said of a place: a single sample if one is near. */
  tell(x, y) {
    const found = this.stripAt(y);
    if (!found) {
      return x < LEFT || x > this.right ? null : this.tellBelief(x, y) || this.tellViews(x, y);
    }
    if (x < LEFT || x > this.right) {
      return null;
    }
    const ones = this.data.ones;
    const [from, to] = [this.time(x - 6), this.time(x + 6)];
    let nearest = -1;
    let distance = Infinity;
    const end = found.lane.oneAt + found.lane.singles;
    for (let at = firstOne(this.data, found.lane, from - 1e9); at < end && ones.due[at] <= to; at += 1) {
      if (ones.strip[at] !== found.strip) {
        continue;
      }
      const begun = ones.due[at] + ones.begunUs[at] * 1e3;
      // Bad ones are easier to hit than good ones.
      const off = Math.abs(this.x(begun) - x) - (ones.worth[at] === BITS.good ? 0 : 3);
      if (off < distance && Math.abs(this.x(begun) - x) <= 6) {
        nearest = at;
        distance = off;
      }
    }
    return nearest >= 0
      ? tellOne(this.data, found.lane, nearest)
      : tellCells(this.data, found.lane, found.strip, this.time(x), this.time(x + 1));
  }
}

function shorten(text, most) {
  return text.length > most ? text.slice(0, Math.floor(most) - 1) + "…" : text;
}
