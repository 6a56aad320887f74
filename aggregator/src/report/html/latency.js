"use strict";
/* One plot a target of how long answers took, on the timeline's view of time. */

/** One target's latencies: shortest to longest of each pixel, log axis. */
class Latency extends Plot {
  constructor(element, view, data, target) {
    super(element, view);
    this.data = data;
    this.lanes = data.run.lanes.filter((lane) => lane.target === target);
    this.height = 190;
    let [low, high] = [Infinity, 0];
    const run = data.run;
    for (const lane of this.lanes) {
      for (let at = lane.cellAt; at < lane.cellAt + lane.strips.length * run.columns; at += 1) {
        if (data.cells.low[at]) {
          low = Math.min(low, data.cells.low[at]);
          high = Math.max(high, data.cells.high[at]);
        }
      }
    }
    this.low = low === Infinity ? 0.1 : codeToMs(low, run) / 1.3;
    this.high = low === Infinity ? 10 : codeToMs(high, run) * 1.3;
  }

  y(ms) {
    const share = Math.log(ms / this.low) / Math.log(this.high / this.low);
    const bottom = this.height - 22;
    return bottom - Math.min(1, Math.max(0, share)) * (bottom - TOP - 10);
  }

  draw(colours) {
    const width = this.fit(this.height);
    const bottom = this.height - 22;
    this.axis(colours, bottom);
    for (let power = Math.ceil(Math.log10(this.low)); Math.pow(10, power) <= this.high; power += 1) {
      const ms = Math.pow(10, power);
      this.context.fillStyle = colours.line;
      this.context.fillRect(LEFT, Math.round(this.y(ms)), this.right - LEFT, 1);
      // Not where "not answered" stands.
      if (this.y(ms) > TOP + 18) {
        this.add("text", { x: LEFT - 8, y: this.y(ms) + 4, "text-anchor": "end" },
          (ms >= 1 ? String(ms) : ms.toFixed(-power)) + " ms");
      }
    }
    const context = this.context;
    const run = this.data.run;
    this.lanes.forEach((lane, number) => {
      const colour = colours.series[number % colours.series.length];
      this.add("text", { x: 2, y: TOP + 14 + number * 14, style: "fill: " + colour }, shorten("■ " + lane.name, (LEFT - 60) / 6.2));
      for (let x = LEFT; x < width - RIGHT; x += 1) {
        const [from, to] = [this.time(x), this.time(x + 1)];
        if (to <= 0 || from >= run.span_ns) {
          continue;
        }
        const [a, b] = columnsOf(run, from, to);
        let [low, high, bits] = [0, 0, 0];
        for (let strip = 0; strip < lane.strips.length; strip += 1) {
          const cell = together(this.data, lane, strip, a, b);
          bits |= cell.bits;
          if (cell.low && (!low || cell.low < low)) {
            low = cell.low;
          }
          high = Math.max(high, cell.high);
        }
        if (high) {
          const [top, foot] = [this.y(codeToMs(high, run)), this.y(codeToMs(low, run))];
          context.fillStyle = colour;
          context.globalAlpha = 0.75;
          context.fillRect(x, top - 0.75, 1, Math.max(1.5, foot - top + 1.5));
          context.globalAlpha = 1;
        }
        if (bits & BITS.bad) {
          context.fillStyle = colours.causes[1];
          context.fillRect(x, TOP + 2, 1, 5);
        }
      }
    });
    this.add("text", { x: LEFT - 8, y: TOP + 9, "text-anchor": "end" }, "not answered");
    this.faults(run.faults, bottom);
  }
}
