"use strict";
/* Puts the page together: one view of time for all plots, changed by wheel, keys,
   buttons and dragging; what is pointed at is told in words. */

const SMALLEST_VIEW_NS = 1e4;
/** More faults than this are chosen from a list. */
const MOST_BUTTONS = 6;

/** The stretch of time that all plots show. */
class View {
  constructor(spanNs) {
    this.spanNs = spanNs;
    this.from = 0;
    this.to = spanNs;
    this.listeners = [];
  }

  set(from, to) {
    const width = Math.min(this.spanNs, Math.max(SMALLEST_VIEW_NS, to - from));
    const begin = Math.min(this.spanNs - width, Math.max(0, from + (to - from - width) / 2));
    this.from = begin;
    this.to = begin + width;
    this.listeners.forEach((listener) => listener());
  }

  /** Makes the view `factor` times as wide around a moment. */
  zoom(factor, around) {
    const centre = around === undefined ? (this.from + this.to) / 2 : around;
    this.set(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    const from = Math.min(this.spanNs - (this.to - this.from), Math.max(0, this.from + by));
    this.set(from, from + (this.to - this.from));
  }

  all() {
    this.set(0, this.spanNs);
  }
}

class Page {
  constructor(data) {
    this.data = data;
    this.view = new View(data.run.span_ns);
    this.status = document.getElementById("status");
    this.tip = document.getElementById("tip");
    this.timeline = new Timeline(document.getElementById("timeline-plot"), this.view, data);
    this.latencies = Array.from(document.querySelectorAll("[data-latency-of]"))
      .map((element) => new Latency(element, this.view, data, element.dataset.latencyOf));
    this.isWaiting = false;
    this.view.listeners.push(() => this.drawSoon());
    this.hearButtons();
    [this.timeline, ...this.latencies].forEach((plot) => this.hearPlot(plot));
    this.hearPage();
    this.draw();
    this.drawLegend();
  }

  drawSoon() {
    if (!this.isWaiting) {
      this.isWaiting = true;
      requestAnimationFrame(() => {
        this.isWaiting = false;
        this.draw();
      });
    }
  }

  draw() {
    this.colours = palette();
    this.timeline.draw(this.colours);
    this.latencies.forEach((plot) => plot.draw(this.colours));
    document.getElementById("extent").textContent =
      seconds(this.view.from) + " to " + seconds(this.view.to);
  }

  say(text) {
    this.status.textContent = text || "";
  }

  hearButtons() {
    const actions = {
      "zoom-in": () => this.view.zoom(0.5),
      "zoom-out": () => this.view.zoom(2),
      "go-left": () => this.view.move(-0.25),
      "go-right": () => this.view.move(0.25),
      "show-all": () => this.view.all(),
    };
    for (const [id, action] of Object.entries(actions)) {
      document.getElementById(id).addEventListener("click", action);
    }
    const place = document.getElementById("fault-buttons");
    const faults = this.data.run.faults;
    if (faults.length > MOST_BUTTONS) {
      const choice = document.createElement("select");
      choice.setAttribute("aria-label", "go to a fault");
      const names = ["go to one of " + faults.length + " faults", ...faults.map((fault) => fault.name)];
      names.forEach((name, at) => choice.add(new Option(shorten(name, 40), String(at - 1))));
      choice.addEventListener("change", () => {
        if (choice.value !== "-1") {
          this.showFault(faults[Number(choice.value)]);
        }
      });
      place.appendChild(choice);
      return;
    }
    for (const fault of faults) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = shorten(fault.name, 26);
      button.addEventListener("click", () => this.showFault(fault));
      place.appendChild(button);
    }
  }

  showFault(fault) {
    const until = fault.settled_ns;
    const width = Math.max(2e8, until - fault.asked[0]);
    this.view.set(fault.asked[0] - width * 0.15, until + width * 0.2);
    this.say(fault.words);
  }

  hearPlot(plot) {
    const element = plot.element;
    let dragFrom = null;
    element.addEventListener("wheel", (event) => {
      // Until the plot has the focus the wheel scrolls the page.
      if (document.activeElement !== element && !event.ctrlKey && !event.metaKey) {
        return;
      }
      event.preventDefault();
      const x = event.clientX - element.getBoundingClientRect().left;
      this.view.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), plot.time(Math.max(LEFT, x)));
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => {
      dragFrom = { x: event.clientX, from: this.view.from, to: this.view.to };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointerup", () => { dragFrom = null; });
    element.addEventListener("pointermove", (event) => {
      if (dragFrom) {
        const perPixel = (dragFrom.to - dragFrom.from) / (plot.right - LEFT);
        const by = (dragFrom.x - event.clientX) * perPixel;
        const from = Math.min(this.view.spanNs - (dragFrom.to - dragFrom.from), Math.max(0, dragFrom.from + by));
        this.view.set(from, from + (dragFrom.to - dragFrom.from));
        return;
      }
      this.point(plot, event);
    });
    element.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    element.addEventListener("dblclick", (event) => {
      const x = event.clientX - element.getBoundingClientRect().left;
      this.view.zoom(0.25, plot.time(Math.max(LEFT, x)));
    });
    element.addEventListener("keydown", (event) => this.hearKey(event));
  }

  point(plot, event) {
    const box = plot.element.getBoundingClientRect();
    const text = plot === this.timeline ? plot.tell(event.clientX - box.left, event.clientY - box.top) : null;
    this.tip.hidden = !text;
    if (text) {
      this.tip.textContent = text;
      const room = document.documentElement.clientWidth;
      const left = Math.min(event.pageX + 14, window.scrollX + room - this.tip.offsetWidth - 8);
      this.tip.style.left = Math.max(4, left) + "px";
      this.tip.style.top = event.pageY + 18 + "px";
    }
  }

  hearKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const actions = {
      "+": () => this.view.zoom(0.5),
      "=": () => this.view.zoom(0.5),
      "-": () => this.view.zoom(2),
      ArrowLeft: () => this.view.move(-0.2),
      ArrowRight: () => this.view.move(0.2),
      Home: () => this.view.all(),
      ArrowUp: () => this.choose(-1),
      ArrowDown: () => this.choose(1),
      ".": () => this.step(1),
      ",": () => this.step(-1),
      f: () => this.nextFault(),
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  }

  strips() {
    return this.data.run.lanes.flatMap((lane) => lane.strips.map((_, strip) => ({ lane, strip })));
  }

  /** Chooses the strip above or below. */
  choose(by) {
    const all = this.strips();
    const chosen = this.timeline.chosen;
    const now = chosen ? all.findIndex((s) => s.lane === chosen.lane && s.strip === chosen.strip) : -1;
    const next = Math.min(all.length - 1, Math.max(0, now + by));
    if (all.length > 0) {
      this.timeline.chosen = { ...all[next], ns: chosen ? chosen.ns : undefined };
      this.say(tellCells(this.data, all[next].lane, all[next].strip, this.view.from, this.view.to));
      this.drawSoon();
    }
  }

  /** Goes to the next bad or late sample of the chosen strip. */
  step(direction) {
    if (!this.timeline.chosen) {
      this.choose(1);
    }
    const chosen = this.timeline.chosen;
    if (!chosen) {
      return;
    }
    const ones = this.data.ones;
    const { lane, strip } = chosen;
    const from = chosen.one === undefined
      ? firstOne(this.data, lane, this.view.from) - (direction > 0 ? 1 : 0)
      : chosen.one;
    const first = lane.oneAt;
    const end = lane.oneAt + lane.singles;
    for (let at = from + direction; at >= first && at < end; at += direction) {
      if (ones.strip[at] === strip && ones.worth[at] & (BITS.bad | BITS.late)) {
        const ns = ones.due[at] + ones.begunUs[at] * 1e3;
        this.timeline.chosen = { lane, strip, one: at, ns };
        if (ns < this.view.from || ns > this.view.to) {
          const half = (this.view.to - this.view.from) / 2;
          this.view.set(ns - half, ns + half);
        }
        this.say(tellOne(this.data, lane, at));
        this.drawSoon();
        return;
      }
    }
    this.say("no further bad or late sample in this strip");
  }

  nextFault() {
    const faults = this.data.run.faults;
    if (faults.length > 0) {
      this.faultShown = this.faultShown === undefined ? 0 : (this.faultShown + 1) % faults.length;
      this.showFault(faults[this.faultShown]);
    }
  }

  hearPage() {
    window.addEventListener("resize", () => this.drawSoon());
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => { this.draw(); this.drawLegend(); });
    const root = document.documentElement;
    window.addEventListener("beforeprint", () => {
      root.classList.add("printing");
      this.draw();
      this.drawLegend();
    });
    window.addEventListener("afterprint", () => {
      root.classList.remove("printing");
      this.draw();
      this.drawLegend();
    });
  }

  /** Only what occurs in this run. */
  drawLegend() {
    const bits = new Set();
    const causes = new Set();
    const { cells } = this.data;
    for (let at = 0; at < cells.bits.length; at += 1) {
      bits.add(cells.bits[at]);
      if (cells.bits[at] & BITS.bad) {
        causes.add(cells.cause[at]);
      }
    }
    const occurs = (bit) => Array.from(bits).some((b) => b & bit);
    const entries = this.data.run.backends.map((name, at) =>
      ["answered by " + name, { bits: BITS.good, backend: at, cause: -1 }]);
    if (cells.backend.some((b, at) => b === NO_BACKEND && cells.bits[at] & BITS.good)) {
      entries.push(["answered, by whom is not known", { bits: BITS.good, backend: NO_BACKEND, cause: -1 }]);
    }
    if (cells.backend.some((b) => b === SEVERAL_BACKENDS)) {
      entries.push(["answered by several", { bits: BITS.good, backend: SEVERAL_BACKENDS, cause: -1 }]);
    }
    for (const cause of Array.from(causes).sort()) {
      entries.push(["bad: " + this.data.run.causes[cause], { bits: BITS.bad, cause }]);
    }
    for (const [bit, words] of [
      [BITS.late, "answered late"],
      [BITS.waitedInVain, "client waits, and no answer comes"],
      [BITS.waitedLong, "client waits for longer than the deadline"],
      [BITS.waited, "client still waits, not for long"],
      [BITS.noData, "no data: neither up nor down"],
    ]) {
      if (occurs(bit)) {
        entries.push([words, { bits: bit, cause: -1, backend: NO_BACKEND }]);
      }
    }
    if (this.data.run.views.length > 0) {
      entries.push(["▾ and the lines below a target: what the proxy itself holds its backends for; hatched: not for up", null]);
    }
    if (this.data.run.resets.length > 0) {
      entries.push(["▾ at the top: all connections were reset, so that the next fault finds clients as new; what came of that is no fault's", null]);
    }
    const list = document.getElementById("legend");
    list.replaceChildren();
    for (const [words, cell] of entries) {
      const item = document.createElement("li");
      if (cell === null) {
        item.append(words);
        list.appendChild(item);
        continue;
      }
      const swatch = document.createElement("canvas");
      swatch.width = 22;
      swatch.height = 12;
      const context = swatch.getContext("2d");
      const style = look(this.colours, cell);
      const tall = 12 * style.share;
      context.fillStyle = style.hatched ? hatch(this.colours, style.colour, context) : style.colour;
      context.fillRect(0, (12 - tall) / 2, 22, tall);
      item.append(swatch, words);
      list.appendChild(item);
    }
  }
}

/** Tries what a person would do, and writes what came of it into the page: for
    tests, at `report.html#check`. */
function checkItself(page, startedMs) {
  const found = { drawn_ms: performance.now() - startedMs, problems: [] };
  const expect = (holds, what) => {
    if (!holds) {
      found.problems.push(what);
    }
  };
  const { data, view, timeline } = page;
  found.lanes = data.run.lanes.length;
  found.singles = data.ones.due.length;
  // Every pixel that covers a bad cell has a bad colour.
  const readable = (width, height) => {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    return canvas.getContext("2d", { willReadFrequently: true });
  };
  const bad = new Set(page.colours.causes.map((colour) => {
    const probe = readable(1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return Array.from(probe.getImageData(0, 0, 1, 1).data).join();
  }));
  const badPixels = () => {
    let [shown, missed] = [0, 0];
    const scale = window.devicePixelRatio || 1;
    const copy = readable(timeline.canvas.width, timeline.canvas.height);
    copy.drawImage(timeline.canvas, 0, 0);
    for (const place of timeline.places.filter((p) => p.lane)) {
      for (let strip = 0; strip < place.lane.strips.length; strip += 1) {
        const middle = Math.floor((place.y + strip * place.tall + place.tall / 2 - 0.5) * scale);
        const line = copy.getImageData(0, middle, timeline.canvas.width, 1).data;
        for (let x = LEFT; x < Math.floor(timeline.width - RIGHT); x += 1) {
          const [a, b] = columnsOf(data.run, timeline.time(x), timeline.time(x + 1));
          if (together(data, place.lane, strip, a, b).bits & BITS.bad) {
            const at = Math.floor((x + 0.5) * scale) * 4;
            const pixel = Array.from(line.slice(at, at + 4)).join();
            if (bad.has(pixel)) {
              shown += 1;
            } else {
              missed += 1;
            }
          }
        }
      }
    }
    expect(missed === 0, missed + " pixels hide a bad sample");
    return shown;
  };
  found.bad_pixels = badPixels();
  const press = (key) => timeline.element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const width = () => view.to - view.from;
  timeline.element.focus();
  expect(document.activeElement === timeline.element, "the timeline cannot take the focus");
  const whole = width();
  press("+");
  expect(Math.abs(width() - whole / 2) < 1, "the key + does not zoom in");
  const before = view.from;
  press("ArrowRight");
  expect(view.from > before, "the key → does not move");
  press("Home");
  expect(width() === whole, "the key Home does not show all");
  const box = timeline.element.getBoundingClientRect();
  timeline.element.dispatchEvent(new WheelEvent("wheel", {
    deltaY: -300, clientX: box.left + LEFT + 100, clientY: box.top + 50, bubbles: true, cancelable: true,
  }));
  expect(width() < whole, "the wheel does not zoom");
  document.getElementById("show-all").click();
  expect(width() === whole, "the button does not show all");
  press("ArrowDown");
  expect(page.status.textContent.includes("probes due"), "a strip is not told");
  found.strip = page.status.textContent;
  press(".");
  found.step = page.status.textContent;
  // Point at a bad sample, wherever one is.
  const ones = data.ones;
  const at = ones.worth.findIndex((worth) => worth === BITS.bad);
  if (at >= 0) {
    const lane = data.run.lanes.find((l) => at >= l.oneAt && at < l.oneAt + l.singles);
    const ns = ones.due[at] + ones.begunUs[at] * 1e3;
    view.set(ns - 5e7, ns + 5e7);
    page.draw();
    badPixels();
    const place = timeline.places.find((p) => p.lane === lane);
    const now = timeline.element.getBoundingClientRect();
    timeline.element.dispatchEvent(new PointerEvent("pointermove", {
      clientX: now.left + timeline.x(ns),
      clientY: now.top + place.y + (ones.strip[at] + 0.5) * place.tall,
      bubbles: true,
    }));
    expect(!page.tip.hidden && page.tip.textContent.includes("BAD after"), "a bad sample is not told");
    found.tip = page.tip.textContent;
  }
  view.all();
  page.draw();
  found.faults = data.run.faults.length;
  // Point at a proxy's view of a backend, if there is one.
  const belief = timeline.places.find((p) => p.belief);
  if (belief) {
    const now = timeline.element.getBoundingClientRect();
    timeline.element.dispatchEvent(new PointerEvent("pointermove", {
      clientX: now.left + timeline.x(belief.belief.stretches[0].from) + 2,
      clientY: now.top + belief.y + 6,
      bubbles: true,
    }));
    expect(!page.tip.hidden, "a proxy's view is not told");
    found.belief = page.tip.textContent;
  }
  const redrawn = performance.now();
  page.draw();
  found.redraw_ms = performance.now() - redrawn;
  page.tip.hidden = true;
  found.interactive_ms = performance.now();
  const out = document.getElementById("check");
  out.hidden = false;
  out.textContent = JSON.stringify(found);
}

(function begin() {
  const startedMs = performance.now();
  const page = new Page(readData());
  document.documentElement.dataset.drawnMs = String(Math.round(performance.now()));
  if (location.hash === "#check") {
    checkItself(page, startedMs);
  }
})();
