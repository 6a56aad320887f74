/* The page. All texts are set as texts, since names and errors come from servers. */

const SILENT_MS = 3000;
const run = new Run();
const rows = [];
let overview = null;
let seconds = 60;
let paused = null;
let chosen = { lane: null, column: null };
let colours = palette();
let legend = "";
let linked = "connecting";

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) {
    made.className = className;
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}

function setText(place, text) {
  if (place.textContent !== text) {
    place.textContent = text;
  }
}

function ms(ns) {
  if (ns === null) {
    return "–";
  }
  const value = ns / 1e6;
  return (value >= 100 ? value.toFixed(0) : value.toPrecision(2)) + " ms";
}

function span(ns) {
  if (ns === null) {
    return "none";
  }
  return ns < 1e9 ? ms(ns) : (ns / 1e9).toFixed(1) + " s";
}

function bytes(count) {
  return count < 1024 ? count + " B" : count < 1048576 ? (count / 1024).toFixed(0) + " KiB"
    : (count / 1048576).toFixed(1) + " MiB";
}

/** A lane's state in words, with a sign beside the colour. */
function stateOf(told, silentMs) {
  if (silentMs > SILENT_MS) {
    return ["warning", "? not known: nothing was heard from the aggregator for " + (silentMs / 1000).toFixed(0) + " s"];
  }
  const quiet = told.quiet_ns === null ? "yet" : "for " + span(told.quiet_ns);
  switch (told.state) {
    case "answered": return ["good", "✓ all answered in the last 2 s"];
    case "late": return ["warning", "! some answered late"];
    case "some_bad": return ["bad", "✗ some bad"];
    case "all_bad": return ["bad", "✗ all bad"];
    case "silent": return ["warning", "? neither answer nor error " + quiet];
    case "ended": return ["plain", "· ended"];
    default: return ["warning", "? no data " + quiet];
  }
}

function laneName(told, severalAgents) {
  const kind = told.kind === "bare" ? "" : " " + told.kind;
  return told.target + " · " + told.style + kind + (severalAgents ? " · from " + told.agent : "");
}

function makeRow(at) {
  const row = { box: element("div", "lane"), head: element("div", "lane-head") };
  for (const part of ["name", "state", "backend", "rate", "p50", "p99", "bad"]) {
    row[part] = element("span", part === "name" ? "lane-name" : part === "state" ? "tone" : "lane-number");
    row.head.append(row[part]);
  }
  row.strip = element("canvas", "strip");
  row.strip.tabIndex = 0;
  row.strip.setAttribute("role", "img");
  row.error = element("div", "lane-error");
  row.box.append(row.head, row.strip, row.error);
  row.strip.addEventListener("pointermove", (event) => {
    const [from, to] = shown();
    const box = row.strip.getBoundingClientRect();
    choose(at, Math.floor((from + ((event.clientX - box.left) / box.width) * (to - from)) / BIN_NS));
  });
  row.strip.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step !== undefined) {
      const [, to] = shown();
      const start = chosen.lane === at && chosen.column !== null ? chosen.column : Math.floor(to / BIN_NS) - ON_THE_WAY;
      choose(at, start + step);
      event.preventDefault();
    }
  });
  return row;
}

/** From when to when is shown, in ns after the begin. */
function shown() {
  const to = paused === null ? run.now(performance.now()) : paused;
  return [to - seconds * 1e9, to];
}

function choose(lane, column) {
  chosen = { lane, column };
  const it = run.lanes[lane];
  const bin = it.bin(column);
  const when = (ns) => (ns / 1e9).toFixed(2);
  const place = laneName(it.told, false) + ", " + when(column * BIN_NS) + " to " + when((column + 1) * BIN_NS) + " s: ";
  let what = "no data";
  if (bin !== undefined && bin[3] !== 0) {
    what = bin[0] + bin[1] + bin[2] === 0 && bin[3] === BITS.good ? "none ended here, good before and after"
      : bin[0] + " answered in time, " + bin[1] + " late, " + bin[2] + " bad ended here";
    if (bin[3] & BITS.bad) {
      what += "; bad: " + (CAUSES[bin[4]] || CAUSES[5]) + (bin[2] === 0 ? " (under way here)" : "");
    }
    if (bin[5] > 0) {
      what += "; last answer from " + run.view.backends[bin[5] - 1];
    }
  }
  setText(byId("column"), place + what);
  draw();
}

function tellLink(silentMs) {
  const place = byId("link");
  let [tone, text] = ["good", "✓ following"];
  if (linked !== "open") {
    [tone, text] = ["warning", "? " + linked];
  } else if (run.view === null) {
    [tone, text] = ["plain", "· no run yet: start one with `gapscope-aggregator start`"];
  } else if (run.view.run_state !== "running") {
    [tone, text] = ["plain", "· the run is " + run.view.run_state + ": what it shows is in its report"];
  } else if (silentMs > SILENT_MS) {
    [tone, text] = ["warning", "? nothing was heard from the aggregator for " + (silentMs / 1000).toFixed(0) + " s"];
  } else if (run.view.trouble !== "") {
    [tone, text] = ["bad", "✗ nothing is stored at present: " + run.view.trouble];
  } else if (run.view.newest_unix_ms === null) {
    [tone, text] = ["warning", "? no sample has been stored yet"];
  } else {
    const behind = (run.view.now_unix_ms - run.view.newest_unix_ms) / 1000;
    if (behind * 1000 > SILENT_MS) {
      [tone, text] = ["warning", "? behind"];
    }
    text += ": the newest stored sample was " + behind.toFixed(1) + " s old when this was told";
  }
  if (paused !== null) {
    text += " (paused)";
  }
  place.className = "tone tone-" + tone;
  setText(place, text);
}

function tell() {
  const at = performance.now();
  const view = run.view;
  const silentMs = view !== null && view.run_state === "running" ? at - run.heardAt : 0;
  tellLink(silentMs);
  if (view === null) {
    return;
  }
  setText(byId("title"), "gapscope live: " + view.scenario);
  const facts = [
    "run " + view.run_id,
    (run.now(at) / 1e9).toFixed(0) + " s of " + (view.planned_ns / 1e9).toFixed(0) + " s planned",
    "an answer counts up to " + (view.deadline_ns / 1e6).toFixed(0) + " ms",
    view.samples + " samples stored" + (view.lost > 0 ? ", up to " + view.lost + " lost" : ""),
  ];
  if (run.missed > 0) {
    facts.push(run.missed + " updates missed by this page");
  }
  if (view.lanes_left_out > 0) {
    facts.push(view.lanes_left_out + " lanes not shown");
  }
  if (view.events_left_out > 0) {
    facts.push(view.events_left_out + " events not told");
  }
  setText(byId("facts"), facts.join(" · "));
  const severalAgents = new Set(view.lanes.map((lane) => lane.agent)).size > 1;
  const place = byId("lanes");
  while (rows.length < run.lanes.length) {
    rows.push(makeRow(rows.length));
  }
  while (rows.length > run.lanes.length) {
    rows.pop().box.remove();
  }
  if (place.lastChild === null || place.lastChild.className !== "axis") {
    place.append(element("canvas", "axis"));
    place.lastChild.setAttribute("aria-hidden", "true");
  }
  run.lanes.forEach((lane, number) => {
    const row = rows[number];
    if (row.box.parentNode === null) {
      place.insertBefore(row.box, place.lastChild);
    }
    const told = lane.told;
    const [tone, words] = stateOf(told, silentMs);
    const name = laneName(told, severalAgents);
    setText(row.name, name);
    row.state.className = "tone tone-" + tone;
    setText(row.state, words);
    setText(row.backend, told.backends.length === 0 ? "answered by nobody"
      : "on " + told.backends.map((backend) => view.backends[backend]).join(", "));
    setText(row.rate, told.rate.toFixed(told.rate < 10 ? 1 : 0) + "/s by " + told.clients + (told.clients === 1 ? " client" : " clients"));
    setText(row.p50, "p50 " + ms(told.p50_ns));
    setText(row.p99, "p99 " + ms(told.p99_ns));
    setText(row.bad, told.bad + " bad, " + told.late + " late in " + told.stretches + " stretches"
      + (told.bad_clients > 0 ? ", " + told.bad_clients + (told.bad_clients === 1 ? " client" : " clients") + " bad at the last probe" : "")
      + (told.void > 0 ? ", " + told.void + " void (the agent's own trouble)" : ""));
    setText(row.error, told.last_error === "" ? "" : "newest error: " + told.last_error);
    const label = "strip of " + name;
    if (row.strip.getAttribute("aria-label") !== label) {
      row.strip.setAttribute("aria-label", label);
    }
  });
  tellLegend(view);
  tellAgents(view);
}

function tellLegend(view) {
  const causes = new Set();
  let late = false;
  for (const lane of run.lanes) {
    for (const bin of lane.bins) {
      if (bin !== undefined && bin[3] & BITS.bad) {
        causes.add(bin[4]);
      }
      late = late || (bin !== undefined && (bin[3] & BITS.late) !== 0);
    }
  }
  const items = view.backends.slice(0, 12).map((name, at) => [colours.backends[at % 6], 0.6, "answered by " + name]);
  if (view.backends.length > 12) {
    items.push([colours.unknown, 0.6, "and " + (view.backends.length - 12) + " more backends"]);
  }
  for (const cause of [...causes].sort()) {
    items.push([colours.causes[cause] || colours.causes[5], 1, "bad: " + (CAUSES[cause] || CAUSES[5])]);
  }
  if (late) {
    items.push([colours.late, 0.85, "answered late"]);
  }
  items.push([colours.noData, 0.3, "no data"]);
  const key = JSON.stringify(items);
  if (key !== legend) {
    legend = key;
    byId("legend").replaceChildren(...items.map(([colour, share, text]) => {
      const item = element("li", "");
      item.append(swatch(colour, share), text);
      return item;
    }));
  }
}

function fill(place, lines) {
  const key = JSON.stringify(lines.map((cells) => cells.map((cell) => (cell instanceof Node ? cell.textContent + cell.outerHTML : cell))));
  if (place.dataset.key === key) {
    return;
  }
  place.dataset.key = key;
  place.replaceChildren(...lines.map((cells) => {
    const line = element("tr", "");
    for (const cell of cells) {
      const box = element("td", "");
      box.append(cell);
      line.append(box);
    }
    return line;
  }));
}

function tellAgents(view) {
  const parts = new Map(view.agents.map((agent) => [agent.agent, agent]));
  const known = overview === null ? [] : overview.agents;
  const names = new Set([...parts.keys(), ...known.map((agent) => agent.agent)]);
  fill(byId("agents"), [...names].map((name) => {
    const part = parts.get(name);
    const agent = known.find((one) => one.agent === name);
    const connected = part ? part.connected : agent.connected;
    const bound = !part ? "takes no part" : part.clock_bound_ns === null ? "? not known yet"
      : part.clock_bound_ns === 0 ? "the same clock" : "± " + span(part.clock_bound_ns);
    return [
      name,
      connected ? "connected" : "✗ away",
      bound,
      !part ? "" : part.behind_ns === null ? "none yet" : span(part.behind_ns) + " old",
      bytes(part ? part.spool_bytes : agent.spool_bytes),
      agent ? agent.host : "",
      agent ? agent.targets.join(", ") : "",
    ];
  }));
}

function tellRuns() {
  fill(byId("runs"), overview.runs.map((one) => {
    const link = element("a", "", one.run_id);
    link.href = "/?run=" + one.run_id;
    const report = element("span", "");
    if (one.has_report) {
      for (const name of ["report.html", "report.json"]) {
        const to = element("a", "", name);
        to.href = "/runs/" + one.run_id + "/" + name;
        report.append(to, " ");
      }
    } else {
      report.append(one.state === "running" ? "when it is closed" : "none yet");
    }
    return [one.began_utc, link, one.scenario, one.state, report];
  }));
}

function addEvents(fresh) {
  const place = byId("events");
  for (const event of fresh) {
    const line = element("li", "");
    line.append(
      element("span", "soft", (event.at_ns / 1e9).toFixed(3) + " s"),
      element("span", "", event.kind),
      element("span", "", event.text),
    );
    place.prepend(line);
  }
  while (place.childNodes.length > EVENTS) {
    place.lastChild.remove();
  }
}

function draw() {
  if (run.view === null) {
    return;
  }
  const [from, to] = shown();
  run.lanes.forEach((lane, number) => {
    if (rows[number] !== undefined && rows[number].box.parentNode !== null) {
      const column = chosen.lane === number ? chosen.column : null;
      drawStrip(rows[number].strip, colours, lane, run.view.faults, from, to, column);
    }
  });
  const axis = document.querySelector("canvas.axis");
  if (axis !== null) {
    drawAxis(axis, colours, run.view.faults, from, to);
  }
}

function onView(view) {
  const isOther = run.view !== null && run.view.run_id !== view.run_id;
  if (view.is_whole && (isOther || run.view === null)) {
    byId("events").replaceChildren();
    paused = null;
  }
  addEvents(run.apply(view, performance.now()));
  const data = document.documentElement.dataset;
  data.views = String(Number(data.views || 0) + 1);
  if (view.is_whole) {
    data.wholes = String(Number(data.wholes || 0) + 1);
  }
  data.run = view.run_id;
  data.state = view.run_state;
  data.samples = String(view.samples);
}

/** How old what is shown is, by the wall clock: right where browser and aggregator
    share one. Kept in the page for whoever measures it. */
function measure() {
  const view = run.view;
  if (view === null || view.newest_unix_ms === null || view.run_state !== "running") {
    return;
  }
  const data = document.documentElement.dataset;
  const age = Date.now() - view.newest_unix_ms;
  data.ageMs = String(age);
  data.ageWorstMs = String(Math.max(age, Number(data.ageWorstMs || 0)));
  data.ageCount = String(Number(data.ageCount || 0) + 1);
  data.ageSum = String(Number(data.ageSum || 0) + age);
}

function setSpan(wanted) {
  seconds = wanted;
  for (const button of document.querySelectorAll(".span")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.seconds) === seconds));
  }
  draw();
}

function togglePause() {
  paused = paused === null ? run.now(performance.now()) : null;
  byId("pause").setAttribute("aria-pressed", String(paused !== null));
  draw();
}

function connect() {
  const wanted = new URLSearchParams(location.search).get("run") || "latest";
  const source = new EventSource("/events?run=" + encodeURIComponent(wanted));
  source.addEventListener("open", () => {
    linked = "open";
  });
  source.addEventListener("view", (event) => onView(JSON.parse(event.data)));
  source.addEventListener("overview", (event) => {
    overview = JSON.parse(event.data);
    tellRuns();
    if (run.view === null) {
      tellAgents({ agents: [] });
    }
  });
  source.addEventListener("turned-out", () => {
    source.close();
    linked = "this page may look no longer: log in again";
  });
  source.addEventListener("error", () => {
    if (source.readyState !== EventSource.CLOSED) {
      linked = "the aggregator is gone: trying again";
      return;
    }
    /* Refused: the session has ended, or there is no such run. */
    linked = "the aggregator refuses this page: is there such a run, and are you logged in? Trying again";
    setTimeout(connect, 5000);
  });
}

byId("pause").addEventListener("click", togglePause);
for (const button of document.querySelectorAll(".span")) {
  button.addEventListener("click", () => setSpan(Number(button.dataset.seconds)));
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) {
    return;
  }
  const on = event.target instanceof HTMLElement ? event.target.tagName : "";
  if (event.key === " " && on !== "BUTTON" && on !== "A") {
    togglePause();
    event.preventDefault();
  }
  const wanted = { 1: 30, 2: 60, 3: 120 }[event.key];
  if (wanted !== undefined) {
    setSpan(wanted);
  }
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = palette();
  legend = "";
  draw();
});
window.addEventListener("resize", draw);
setSpan(window.innerWidth < 900 ? 30 : 60);
setInterval(() => {
  tell();
  draw();
}, 250);
setInterval(measure, 100);
connect();
