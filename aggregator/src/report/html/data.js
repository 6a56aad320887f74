"use strict";
/* What the page carries: words as JSON, numbers as little-endian bytes in
   base64. Nothing is fetched. */

const BITS = { good: 1, late: 2, bad: 4, waited: 8, waitedInVain: 16, noData: 32, waitedLong: 64 };
const NO_BACKEND = 255;
const SEVERAL_BACKENDS = 254;

/** The bytes of one block; its text is dropped from the page. */
function readBytes(name) {
  const element = document.getElementById("data-" + name);
  const binary = atob(element.textContent);
  element.textContent = "";
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) {
    bytes[at] = binary.charCodeAt(at);
  }
  return bytes;
}

/** Everything the figures are drawn from. */
function readData() {
  const run = JSON.parse(document.getElementById("data-run").textContent);
  const data = {
    run,
    cells: {
      bits: readBytes("cell-bits"),
      cause: readBytes("cell-cause"),
      backend: readBytes("cell-backend"),
      low: new Uint16Array(readBytes("cell-low").buffer),
      high: new Uint16Array(readBytes("cell-high").buffer),
      probed: new Uint16Array(readBytes("cell-probed").buffer),
      bad: new Uint16Array(readBytes("cell-bad").buffer),
    },
    ones: {
      client: new Uint16Array(readBytes("one-client").buffer),
      strip: new Uint16Array(readBytes("one-strip").buffer),
      due: new Float64Array(readBytes("one-due").buffer),
      begunUs: new Uint32Array(readBytes("one-begun").buffer),
      tookUs: new Uint32Array(readBytes("one-took").buffer),
      worth: readBytes("one-worth"),
      backend: readBytes("one-backend"),
      error: new Uint16Array(readBytes("one-error").buffer),
      connection: new Uint32Array(readBytes("one-connection").buffer),
      connectionId: new Float64Array(readBytes("one-connection-id").buffer),
    },
  };
  let cell = 0;
  let one = 0;
  for (const lane of run.lanes) {
    lane.cellAt = cell;
    lane.oneAt = one;
    cell += lane.strips.length * run.columns;
    one += lane.singles;
  }
  return data;
}

/** Milliseconds behind a cell's code for a latency. */
function codeToMs(code, run) {
  return Math.pow(10, (code - 1) / run.log_steps) / 1e6;
}

/** The columns that a stretch of time touches: first and last. */
function columnsOf(run, fromNs, toNs) {
  const last = run.columns - 1;
  const column = (ns) => Math.min(last, Math.max(0, Math.floor((ns / run.span_ns) * run.columns)));
  return [column(fromNs), column(Math.max(fromNs, toNs - 1))];
}

/** A strip's cells from one column to another, brought together. */
function together(data, lane, strip, from, to) {
  const cells = data.cells;
  const base = lane.cellAt + strip * data.run.columns;
  const sum = { bits: 0, cause: -1, backend: NO_BACKEND, low: 0, high: 0, probed: 0, bad: 0 };
  for (let at = base + from; at <= base + to; at += 1) {
    const bits = cells.bits[at];
    sum.bits |= bits;
    if (sum.cause < 0 && bits & BITS.bad) {
      sum.cause = cells.cause[at];
    }
    const backend = cells.backend[at];
    if (backend !== NO_BACKEND) {
      if (sum.backend === NO_BACKEND) {
        sum.backend = backend;
      } else if (sum.backend !== backend) {
        sum.backend = SEVERAL_BACKENDS;
      }
    }
    if (cells.low[at] && (!sum.low || cells.low[at] < sum.low)) {
      sum.low = cells.low[at];
    }
    if (cells.high[at] > sum.high) {
      sum.high = cells.high[at];
    }
    sum.probed += cells.probed[at];
    sum.bad += cells.bad[at];
  }
  return sum;
}

/** The first single sample of a lane that is due at or after a time. */
function firstOne(data, lane, ns) {
  let low = lane.oneAt;
  let high = lane.oneAt + lane.singles;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.ones.due[middle] < ns) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

function seconds(ns, digits) {
  return (ns / 1e9).toFixed(digits === undefined ? 3 : digits) + " s";
}

function milliseconds(ms) {
  const digits = ms < 10 ? 2 : ms < 1000 ? 1 : 0;
  return ms.toFixed(digits) + " ms";
}

/** "±0.051 ms", or nothing where the time is exact. */
function plusMinus(ns) {
  return ns > 0 ? " ±" + (ns / 1e6).toFixed(3) + " ms" : "";
}

function backendName(data, number) {
  if (number === NO_BACKEND) {
    return "nobody";
  }
  if (number === SEVERAL_BACKENDS) {
    return "several";
  }
  return data.run.backends[number];
}

/** How long after the newest fault before it a moment lies, in words. */
function afterFault(data, ns, boundNs) {
  let newest = null;
  for (const fault of data.run.faults) {
    if (fault.asked[0] <= ns && (!newest || fault.asked[0] > newest.asked[0])) {
      newest = fault;
    }
  }
  if (!newest) {
    return "";
  }
  const middle = (newest.asked[0] + newest.asked[1]) / 2;
  const bound = (newest.asked[1] - newest.asked[0]) / 2 + boundNs;
  return ", " + seconds(ns - middle) + plusMinus(bound) + " after fault " + newest.id;
}

/** All that is known of a single sample, in words. */
function tellOne(data, lane, at) {
  const ones = data.ones;
  const begun = ones.due[at] + ones.begunUs[at] * 1e3;
  const worth = ones.worth[at];
  const lines = [
    lane.label + ", client " + ones.client[at],
    "begun " + seconds(begun, 6) + plusMinus(lane.bound_ns) + afterFault(data, begun, lane.bound_ns),
  ];
  const took = milliseconds(ones.tookUs[at] / 1e3);
  if (worth === BITS.good) {
    lines.push("answered after " + took + " by " + backendName(data, ones.backend[at]));
  } else if (worth === BITS.late) {
    lines.push("LATE: answered after " + took + " by " + backendName(data, ones.backend[at]));
  } else if (worth === BITS.bad) {
    lines.push("BAD after " + took);
  } else {
    lines.push("no data: cut or held back after " + took);
  }
  if (ones.error[at] > 0) {
    lines.push(data.run.errors[ones.error[at] - 1]);
  }
  if (ones.connection[at] > 0) {
    const id = ones.connectionId[at];
    lines.push("its connection " + ones.connection[at] + (id > 0 ? ", CONNECTION_ID() " + id : ""));
  }
  return lines.join("\n");
}

/** What the cells under a stretch of time say, in words. */
function tellCells(data, lane, strip, fromNs, toNs) {
  const [from, to] = columnsOf(data.run, fromNs, toNs);
  const cell = together(data, lane, strip, from, to);
  const width = data.run.span_ns / data.run.columns;
  const clients = lane.strips[strip];
  const lines = [
    lane.label + (clients.length > 1
      ? ", clients " + clients[0] + " to " + clients[clients.length - 1]
      : ", client " + clients[0]),
    seconds(from * width) + " to " + seconds((to + 1) * width) + afterFault(data, to * width, lane.bound_ns),
    cell.probed + " probes due, " + cell.bad + " bad or late",
  ];
  const words = [];
  if (cell.bits & BITS.bad) {
    words.push("bad: " + data.run.causes[Math.max(0, cell.cause)]);
  }
  if (cell.bits & BITS.late) {
    words.push("late answers");
  }
  if (cell.bits & BITS.waitedInVain) {
    words.push("waited for an answer that never came");
  }
  if (cell.bits & BITS.waitedLong) {
    words.push("waited for an answer for longer than the deadline");
  }
  if (cell.bits & BITS.waited) {
    words.push("waited for an answer");
  }
  if (cell.bits & BITS.noData) {
    words.push("no data");
  }
  if (cell.high > 0) {
    words.push("answered in " + milliseconds(codeToMs(cell.low, data.run)) + " to " +
      milliseconds(codeToMs(cell.high, data.run)) + " by " + backendName(data, cell.backend));
  }
  lines.push(words.join("; ") || "nothing was due");
  return lines.join("\n");
}
